"""What commands write: all of a file or nothing of it, and devices stay devices."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from railweave.output import OutputError, check_writable, json_text, write_whole

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

_WRITERS = [
    ("matrix", "balanced:1MiB", "--ranks", "64", "-o"),
    ("simulate", "--fabric", "h100-4gpu-ndr", "--matrix", "balanced:1MiB", "--report"),
    ("topo", "h100-4gpu-ndr", "--svg"),
    ("topo", "h100-4gpu-ndr", "--nccl-xml"),
    ("topo", "--record"),
]
_PRINTERS = [
    ("matrix", "balanced:1", "--ranks", "2"),
    ("plan", "--fabric", "h100-4gpu-ndr", "--matrix", "balanced:1MiB"),
    ("simulate", "--fabric", "h100-4gpu-ndr", "--matrix", "balanced:1MiB", "--json"),
    ("topo", "--list"),
]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a name and nothing else."""
    target = tmp_path / "full"
    target.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", bytes(target), b"tmpfs", 0, b"size=4k") != 0:
        pytest.skip(f"a tmpfs cannot be mounted: {os.strerror(ctypes.get_errno())}")
    yield target
    assert libc.umount2(bytes(target), 0) == 0


def test_a_file_is_replaced_and_keeps_to_the_umask(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 255)  # the longest name: the one written beside it must not be longer
    write_whole(target, "first")
    write_whole(target, b"second")
    assert target.read_bytes() == b"second"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "file"
    target.write_text("first")
    target.chmod(mode)
    write_whole(target, "second")
    assert (stat.S_IMODE(target.stat().st_mode), target.read_text()) == (mode, "second")
    write_whole(target, "third", mode=0o400)
    assert (stat.S_IMODE(target.stat().st_mode), target.read_text()) == (0o400, "third")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file that is mounted over another, as containers get some."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("longer than what comes")
    target.touch()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(bytes(source), bytes(target), b"none", _BIND, None) != 0:
        pytest.skip(f"a file cannot be mounted: {os.strerror(ctypes.get_errno())}")
    yield target
    assert libc.umount2(bytes(target), 0) == 0


_BIND, _READ_ONLY, _REMOUNT = 4096, 1, 32


def test_a_file_that_is_mounted_is_written_in_place(mounted: Path) -> None:
    check_writable(mounted)
    for text in ("text", "", "longer than ever was there before"):
        write_whole(mounted, text)
        assert mounted.read_text() == text
    assert {path.name for path in mounted.parent.iterdir()} == {"source", "target"}


def test_a_file_that_is_mounted_to_be_read_is_told_before(mounted: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"none", bytes(mounted), b"none", _BIND | _REMOUNT | _READ_ONLY, None) == 0
    _is_told(mounted, "Device or resource busy")


def _is_told(target: Path, why: str) -> None:
    for write in (check_writable, lambda path: write_whole(path, "text")):
        with pytest.raises(OutputError) as caught:
            write(target)
        assert str(caught.value) == f"{target}: cannot be written: {why}"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder of this user's in which another, who this process is then, may do what its mode says."""
    if os.geteuid() != 0:
        pytest.skip("needs root to be somebody else")
    folder = Path(tempfile.mkdtemp())  # a folder above tmp_path is for its owner alone
    os.seteuid(65534)
    yield folder
    os.seteuid(0)
    shutil.rmtree(folder)


def _set_up(folder: Path, mode: int, file_mode: int) -> Path:
    target = folder / "file"
    os.seteuid(0)
    target.write_text("kept")
    target.chmod(file_mode)
    folder.chmod(mode)
    os.seteuid(65534)
    return target


def test_anothers_file_in_a_shared_folder_is_told_before(shared: Path) -> None:
    target = _set_up(shared, 0o1777, 0o644)
    _is_told(target, "Operation not permitted")
    assert [path.name for path in shared.iterdir()] == ["file"]
    assert target.read_text() == "kept"


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_file_that_may_be_written_is_whoever_owns_the_folder(shared: Path, mode: int) -> None:
    target = _set_up(shared, mode, 0o666)
    check_writable(target)
    write_whole(target, "new")
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new", 0o666)


def test_a_file_that_may_be_neither_written_nor_replaced_is_told(shared: Path) -> None:
    _is_told(_set_up(shared, 0o755, 0o644), "Permission denied")


def test_a_prediction_is_shown_whatever_becomes_of_its_page(cli: Cli, full: Path) -> None:
    (full / "taken").write_bytes(bytes(4096))
    predicted = ("simulate", "--fabric", "h100-4gpu-ndr", "--matrix", "balanced:1MiB", "--policy", "railweave")
    for options in ((), ("--json",)):
        done = cli(*predicted, *options, "--report", str(full / "out"))
        assert done.returncode == 1
        assert (json.loads(done.stdout)["matrix"]["name"] if options else done.stdout.count("bound")) and "page:" not in done.stdout


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    link = tmp_path / "link"
    link.symlink_to("away/file")
    for text in ("new", "again"):
        write_whole(link, text)
        assert link.is_symlink()
        assert (tmp_path / "away" / "file").read_text() == text


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_writable(pipe)
        write_whole(pipe, "text")
        assert os.read(reader, 99) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("name", [".", "missing/file", "file/below"])
def test_targets_that_cannot_be_written_are_told_before_and_after(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("kept")
    target = tmp_path / name
    for write in (check_writable, lambda path: write_whole(path, "text")):
        with pytest.raises(OutputError) as caught:
            write(target)
        assert str(caught.value).startswith(f"{target}: cannot be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_bytes_of_the_command_line_that_are_no_text_cost_no_page(tmp_path: Path) -> None:
    write_whole(tmp_path / "page", "titled \udcff")
    assert (tmp_path / "page").read_text() == "titled ?"


@pytest.mark.parametrize("command", _WRITERS, ids=lambda command: f"{command[0]}{command[-1]}")
def test_a_full_disk_is_an_error_and_leaves_nothing(cli: Cli, full: Path, command: tuple[str, ...]) -> None:
    (full / "taken").write_bytes(bytes(4096))
    done = cli(*command, str(full / "out"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"railweave: {full / 'out'}: cannot be written: No space left on device"
    assert [path.name for path in full.iterdir()] == ["taken"]


@pytest.mark.parametrize("command", _PRINTERS, ids=lambda command: command[0])
def test_standard_output_that_is_full_or_closed_is_no_crash(command: tuple[str, ...]) -> None:
    run = [sys.executable, "-m", "railweave", *command]
    with Path("/dev/full").open("w") as target:
        done = subprocess.run(run, stdout=target, stderr=subprocess.PIPE, text=True, timeout=500, check=False)
    assert (done.returncode, done.stderr) == (1, "railweave: standard output: cannot be written: No space left on device\n")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as broken:
        done = subprocess.run(run, stdout=broken, stderr=subprocess.PIPE, text=True, timeout=500, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *run], stderr=subprocess.PIPE, text=True, timeout=500, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_file_becomes_a_standard_descriptor_that_is_closed(tmp_path: Path) -> None:
    code = "from railweave.ending import open_what_is_closed\nopen_what_is_closed()\nprint(open('other', 'w').fileno())\n"
    shell = 'exec "$@" <&- 2>&-'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=500
    )
    assert done.stdout == "3\n"


@pytest.mark.parametrize("home", ["/dev/null/home", "/proc/home"])
def test_a_page_is_made_without_a_home_and_without_a_word(cli: Cli, home: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    (tmp_path / "temporary").mkdir()
    environment = {**kept, "HOME": home, "TMPDIR": str(tmp_path / "temporary")}
    page = tmp_path / "page.html"
    predicted = ("simulate", "--fabric", "kisti-v100-2gpu", "--matrix", "balanced:1MiB", "--policy", "railweave")
    done = cli(*predicted, "--report", str(page), env=environment)
    # What matplotlib says of a list of fonts that takes long is no complaint.
    assert (done.returncode, [line for line in done.stderr.splitlines() if "font cache" not in line]) == (0, [])
    assert page.read_text().count("<svg") == 2
    assert not list((tmp_path / "temporary").iterdir())


def test_json_has_no_half_characters(cli: Cli, tmp_path: Path) -> None:
    assert json.loads(json_text({"a\udce9": ["\udc80", ("é😀", 1, None)]})) == {"a\\udce9": ["\\udc80", ["é😀", 1, None]]}
    matrix = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    Path(os.fsdecode(matrix)).write_text("0 1\n1 0\n")
    done = cli("simulate", "--fabric", "kisti-v100-2gpu", "--matrix", os.fsdecode(matrix), "--json")
    assert json.loads(done.stdout)["matrix"]["name"] == f"{tmp_path}/caf\\udce9.txt", done.stderr


def test_two_outputs_are_two_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    one, same = tmp_path / "out", tmp_path / "folder" / ".." / "out"
    check_writable(one, None, tmp_path / "other", Path("/dev/null"), Path("/dev/null"))
    with pytest.raises(OutputError, match="out: named for two outputs; expected a file for each"):
        check_writable(one, same)


@pytest.mark.parametrize(
    "arguments",
    [
        ("topo", "dgx-1v", "--svg", "{}"),
        ("topo", "dgx-1v", "--nccl-xml", "{}"),
        ("topo", "--record", "{}", "--salt", "x"),
        ("matrix", "balanced:1", "--ranks", "2", "--output", "{}"),
    ],
)
def test_what_goes_to_standard_output_is_alone_there(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    # What /dev/stdout is where it is: a container's /dev can lack it, and a file of that name would then be written.
    name = tmp_path / "stdout"
    name.symlink_to("/proc/self/fd/1")
    run = [sys.executable, "-m", "railweave", *(argument.format(name) for argument in arguments)]
    done = subprocess.run(run, capture_output=True, timeout=500, check=True)
    assert done.stdout and bytes(name) not in done.stdout
    assert name.is_symlink()
