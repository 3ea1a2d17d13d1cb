"""What a mutation of a model is: mutations.py and gpu_mutations.py have them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A model with one rule replaced; the search must find a counterexample."""

    name: str
    model: str
    defines: tuple[str, ...]
    change: str  # what the rule is replaced by
    caught_by: str  # assertion, or cycle (a run without end)
    shape: str  # of the counterexample
