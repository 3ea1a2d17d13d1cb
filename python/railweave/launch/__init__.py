"""Starts a program as one rank: finds the rank, binds it, sets what was advised, and becomes the program; see docs/run.md.

This stands before every rank of a job, so it imports only what it needs: the modules of this room use the cheapest parts of the standard
library, and everything that works out advice is loaded only when no advice is kept for the machine yet (docs/run.md has the times).
"""
