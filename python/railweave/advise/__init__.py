"""Advice: which cores, memory and NICs each rank of a node should use, and which settings; see docs/advise.md."""
