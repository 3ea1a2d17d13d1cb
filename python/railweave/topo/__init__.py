"""Showing a fabric to people: as a tree in the terminal and as a picture."""
