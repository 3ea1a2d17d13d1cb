"""Machines: what one host is made of, read live, from a recording, or from another tool's output; see docs/machine.md."""
