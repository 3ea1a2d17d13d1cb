"""The command that evaluates, from the outside."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from bench.gpus.test_evaluate import SCRIPTS, exchanges, run_of


def evaluated(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "evaluate.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_tables_are_of_the_machine_that_was_measured(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    run = dataclasses.replace(run_of(exchanges("hot-pair:4MiB", 2e-3, 1e-3)), gpus=8)
    (tmp_path / "parts" / "exchanges.00.json").write_text(json.dumps(run.to_json()))
    done = evaluated(tmp_path, "--tables")
    assert done.returncode == 0, done.stderr
    assert "## Aims, 8 GPUs" in (tmp_path / "results.md").read_text()
    on_all = dataclasses.replace(run, gpus=16, settings={**run.settings, "nodes": 2, "ranks": 8, "rails": 4, "rate_bps": 8e9})
    (tmp_path / "parts" / "rails.00.json").write_text(json.dumps(on_all.to_json()))
    assert evaluated(tmp_path, "--tables", "--gpus", "8").returncode == 0, "a lab takes the GPUs that there are"
    refused = evaluated(tmp_path, "--tables", "--gpus", "2")
    assert refused.returncode == 2
    assert "has results of 8" in refused.stderr


def test_what_cannot_be_written_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "results.md").mkdir()
    for out in (tmp_path, Path("/dev/null/here")):
        done = evaluated(out, "--tables")
        assert done.returncode == 1
        assert done.stderr.startswith("evaluate.py: ") and done.stderr.count("\n") == 1, done.stderr
