"""Runs an exchange for real, in a lab, under several policies and peers, and compares them; every byte is checked."""
