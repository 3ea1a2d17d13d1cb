"""What is packed for a machine that builds nothing, and what comes back from there: nobody's files are lost."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[4] / "benchmarks/gpus"


def run(script: str, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPTS / script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, check=False)


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (("notes.txt",), "notes.txt"),
        (("benchmarks",), "benchmarks"),
        (("commit", "site.tar.gz", "notes.txt"), "notes.txt"),
        (("commit", "site.tar.gz", "results.tar.gz"), "results.tar.gz"),
    ],
)
def test_a_folder_with_anything_else_is_left_alone(there: tuple[str, ...], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in there:
        (folder / name).write_text("precious")
    done = run("pack", sys.executable, "mine", cwd=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == sorted(there)


@pytest.mark.parametrize("words", [(), ("/nonexistent/python",), ("--help",)])
def test_what_is_no_python_is_told(words: tuple[str, ...]) -> None:
    done = run("pack", *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr


def packed(folder: Path) -> Path:
    """With a site that has nothing in it."""
    folder.mkdir()
    with tarfile.open(folder / "site.tar.gz", "w:gz"):
        pass
    return folder


def test_damaged_results_are_not_begun_anew(tmp_path: Path) -> None:
    folder = packed(tmp_path / "pack")
    (folder / "results.tar.gz").write_bytes(b"garbage")
    done = run("run-packed", folder, tmp_path / "out", "--tables")
    assert done.returncode == 1
    assert "results.tar.gz is damaged" in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_nothing_is_left_of_a_call_without_a_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    done = run("run-packed", tmp_path / "none", tmp_path / "out")
    assert done.returncode == 1
    assert "unbound" not in done.stderr
    assert not list((tmp_path / "scratch").iterdir())
    assert run("run-packed").returncode == 2
