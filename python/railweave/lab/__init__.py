"""Emulated rails on one machine: nodes and ranks in network namespaces, joined by veth pairs shaped like NICs and switches."""

from railweave.lab.errors import LabError
from railweave.lab.lab import Lab, foreign_labs, labs, take_down
from railweave.lab.program import Program
from railweave.lab.spec import LabSpec

__all__ = ["Lab", "LabError", "LabSpec", "Program", "foreign_labs", "labs", "take_down"]
