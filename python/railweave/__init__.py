"""Railweave: moves data between GPUs over all paths at once, and explains the fabric it does it on."""

from importlib.metadata import version

__version__ = version("railweave")
