"""Exchanges in labs, on machines that may keep a whole node's ranks from their CPUs for seconds."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patient_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence of a node is no death in any of these tests, and ranks that start wait for each other."""
    monkeypatch.setenv("RAILWEAVE_DEATH_MS", "600000")
    monkeypatch.setenv("RAILWEAVE_BOOTSTRAP_MS", "300000")
