"""The evaluation on GPUs: correctness, exchanges and layers, on NVLink and on shaped rails; it goes on where it stopped.

    python benchmarks/gpus/evaluate.py OUT [--gpus N] [--nccl FILE] [--exchange FILE] [--limit SECONDS] [NAME ...]
    python benchmarks/gpus/evaluate.py OUT --tables        # OUT/results.md and pages with pictures from what is there; needs no GPU

Run by the Python that has PyTorch and Railweave; labs need root. What OUT has is not run again. A machine that is not calibrated is so
first. A matrix or layer that failed, or took too long, is tried once in each call, and the rest goes on without it; a check that failed
has told why, and runs again when its file is gone. A command of `railweave bench` measures all that is missing of a group of sections,
writes each result when it has it, and is ended after 8 minutes, or when --limit is used up: nothing that was measured is lost. Where ranks
of a lab share GPUs it runs under MPS, if this machine has it, else they share them by time slices; the results say which. All programs
that it starts end with it. OUT/results.md begins with a line for each aim of the project, and what failed; where there is matplotlib,
OUT/gains-SECTION.svg are its pictures.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import aims
from sections import Check, Group, Section, argument_of, checks, groups, late_checks, ranks, sections

from railweave.bench.gpus.result import Run
from railweave.bench.gpus.table import markdown, tables
from railweave.calibrate import read
from railweave.calibrate.kept import kept
from railweave.errors import Error
from railweave.lab.syscalls import die_with_parent
from railweave.nccl import library
from railweave.output import write_whole

if TYPE_CHECKING:  # which needs matplotlib
    from railweave.report.gpus import GainRow

_ROOT = Path(__file__).parents[2]
_CUDA = Path("/usr/local/cuda")
_COMMAND_LIMIT_S = 480.0
_LEAST_S = 45.0  # to start PyTorch on all ranks and measure something
_MPS_S = 90.0  # to start MPS and load PyTorch under it
_GOODBYE_S = 20.0  # for a program that was asked to end
_FAILURES = 3  # of a group in one call
_IN_VAIN = 2  # commands of a group, one after another, that measured nothing: it is not the kind of case, nothing starts
_GROUPS, _GROUPS_OF_OTHERS = 10_000, 2000  # random ones, under the shim and in other ways of running PyTorch
_NOTE = "== "  # begins what stands in a log behind what the program said
_ENDED = f"{_NOTE}status "
_TIMED_OUT = "status none, "
_TOLD_LINES = 12  # of what a program that failed said last


class Evaluation:
    """What is there, what is missing, and how much time is left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.out: Path = options.out
        self.gpus: int = options.gpus
        self.options = options
        self.groups = groups(self.gpus)
        self.sections = sections(self.gpus)
        self._end = time.monotonic() + options.limit
        self._parsed: dict[Path, tuple[int, Run | None]] = {}  # by its time of change
        self._measured = 0  # programs that measured
        self._mps: list[str] | None = None  # what starts a program under it, once that was asked; nothing where there is none

    def left(self) -> float:
        """Seconds of a command that begins now."""
        return min(_COMMAND_LIMIT_S, self._end - time.monotonic())

    def runs(self, group: str) -> list[Run]:
        """All that was measured of a group, in the order of time, but for what is damaged: that is told once, and measured again."""
        found = (self._run_of(path) for path in sorted((self.out / "parts").glob(f"{group}.*.json")))
        return [run for run in found if run is not None]

    def _run_of(self, path: Path) -> Run | None:
        changed = path.stat().st_mtime_ns
        if self._parsed.get(path, (0,))[0] != changed:
            try:
                self._parsed[path] = changed, Run.load(path)
            except Error as error:
                print(f"== left out: {error}", file=sys.stderr, flush=True)
                self._parsed[path] = changed, None
        return self._parsed[path][1]

    def missing(self, group: Group, wanted: Sequence[str]) -> list[str]:
        """Cases without all of their results."""
        cases = dict.fromkeys(
            case for section in self.sections if section.group == group.name and section.name in wanted for case in section.cases
        )
        runs = self.runs(group.name)
        return [case for case in cases if len({key for run in runs for key in _keys(run, case)}) < group.needs]

    # --- Running

    def with_calibration(self, names: Sequence[str]) -> list[str]:
        """The same, and where something is measured what exchanges go by."""
        measures = any(section.name in names for section in self.sections)
        return [*names, *(["calibrate"] if measures else [])]

    def run(self, wanted: Sequence[str]) -> bool:
        """Everything that is wanted and missing. False when something failed."""
        good = True
        for check in checks(self.gpus):
            good = self._check(check, wanted) and good
        for name in dict.fromkeys(section.group for section in self.sections):
            before = self._measured
            good = self._measure(self.groups[name], wanted) and good
            if self._measured != before:
                self.draw_gains(name)
                self.write()  # whoever ends this finds it
        for check in late_checks(self.gpus):
            good = self._check(check, wanted) and good
        return good

    def write(self) -> None:
        """OUT/results.md."""
        write_whole(self.out / "results.md", self.results())

    def _measure(self, group: Group, wanted: Sequence[str]) -> bool:
        """Runs the group's command until nothing is missing but what failed in it."""
        failed: list[str] = []
        good, in_vain = True, 0
        while cases := self._next(group, wanted, failed):
            if self.left() < _LEAST_S or len(failed) == _FAILURES or in_vain == _IN_VAIN:
                print(f"== {group.name}: left for later: {', '.join(cases)}", flush=True)
                break
            part = self.out / "parts" / f"{group.name}.{len(list((self.out / 'parts').glob(f'{group.name}.*.log'))):02}"
            before = self._under_mps() if self._shares(group) else []
            log = Path(f"{part}.log")
            self._measured += 1
            status = self._program(group.name, [*before, *self.command(group, cases, part)], log, self.left())
            good = good and status in (0, None)
            missing = self.missing(group, wanted)
            still = [case for case in cases if case in missing]
            in_vain = in_vain + 1 if still == cases else 0
            # The first case without its results ended the command; where time did, it is one that takes too long only if it was the first.
            if still and (status is not None or still[0] == cases[0]):
                failed.append(still[0])
                print(f"== {group.name}: nothing of {still[0]}", flush=True)
                with log.open("a") as notes:
                    notes.write(f"{_NOTE}nothing of {still[0]}\n")
        return good and not failed

    def _next(self, group: Group, wanted: Sequence[str], failed: Sequence[str]) -> list[str]:
        """What to measure in this order: last what is of a kind that failed, which may fail again and keep the rest from its turn."""
        bad = {_kind(case) for case in failed}
        return sorted((case for case in self.missing(group, wanted) if case not in failed), key=lambda case: _kind(case) in bad)

    def _shares(self, group: Group) -> bool:
        """Has a GPU several of its ranks?"""
        return group.ranks > self.gpus

    def _under_mps(self) -> list[str]:
        """What to put before a command so that its ranks share GPUs under MPS. Nothing where no program of CUDA runs under it."""
        if self._mps is None:
            script = [sys.executable, str(Path(__file__).parent / "under_mps.py")]
            tried = [*script, sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"]
            there = self._program("mps", tried, self.out / "parts" / "mps.log", min(_MPS_S, self.left())) == 0
            self._mps = script if there else []
        return self._mps

    def command(self, group: Group, cases: Sequence[str], part: Path) -> list[str]:
        """Of `railweave bench`."""
        other = self.options.nccl
        compares_itself = group.name in ("mesh", "watched")  # Railweave with Railweave
        rival = ["--nccl", str(other.resolve())] if other and not compares_itself else []
        words = [word for case in cases for word in (group.option, argument_of(case, group, self.out / "matrices"))]
        return [sys.executable, "-m", "railweave", "bench", *group.words, *rival, *words, "--json", f"{part}.json"]

    def _check(self, check: Check, wanted: Sequence[str]) -> bool:
        result = self.out / f"{check.name}.txt"
        if check.name not in wanted or (result.exists() and not self._calibrates(check, result)):
            return True
        if check.needs_exchange and not self.options.exchange:
            print(f"== {check.name}: needs --exchange", flush=True)
            return True
        if self.left() < check.seconds:
            print(f"== {check.name}: left for later", flush=True)
            return True
        log, limit = self.out / "parts" / f"{check.name}.log", min(check.limit, self.left())
        status = self._program(check.name, self.check_command(check), log, limit)
        if status is not None or limit == check.limit:  # one that had less time than it may take is begun again by the next call
            shutil.copyfile(log, result)
        return status == 0

    def _calibrates(self, check: Check, result: Path) -> bool:
        """What follows from a calibration holds on the machine that was calibrated, until it boots: the next call may have another one."""
        return check.name == "calibrate" and result.read_text().endswith(f"{_ENDED}0\n") and not _calibrated()

    def check_command(self, check: Check) -> list[str]:
        """Of a program that checks."""
        here, shim = Path(__file__).parent, library()
        shared = self._under_mps() if self.gpus == 1 and check.name != "planning" else []
        if check.name == "kernels":
            own = shim.parent / "librailweave_cuda.so"
            words = ["--exchange", str(self.options.exchange), "--railweave", str(own), "--nccl", str(_nccl_of_pytorch())]
            limit = min(check.limit, self.left()) - _GOODBYE_S - 5  # its last step ends by itself
            return [
                sys.executable,
                str(_ROOT / "benchmarks/cuda/gpu_run.py"),
                *words,
                "--ranks",
                str(ranks(self.gpus)),
                "--seconds",
                f"{limit:.0f}",
                *(["--mps"] if shared else []),
                *(_sanitizer() if self.gpus > 1 else []),
            ]
        if check.name == "calibrate":
            show = ["--show"] if _calibrated() else []
            return [sys.executable, "-m", "railweave", "calibrate", *show, "--output", str(self.out / "calibration.json")]
        if check.name == "planning":
            return [sys.executable, str(here / "planning.py")]
        if check.name == "rail-down":
            return [*shared, sys.executable, str(here / "rail_down.py"), "--gpus", str(self.gpus), "--ranks", str(ranks(self.gpus))]
        name = check.name.removeprefix("check-")
        script = str(_ROOT / "benchmarks/nccl/check_on_gpus.py")
        words = [sys.executable, script, "--shim", str(shim), "--ranks", str(ranks(self.gpus))]
        words += ["--groups", str(_GROUPS if name == "random_groups" else _GROUPS_OF_OTHERS)]
        if name == "mps":
            return [sys.executable, str(here / "under_mps.py"), *words, "--ways", "shim", "collectives", "random_groups"]
        if name == "random_groups":
            return [*shared, *words, "--ways", "shim", name]
        if name == "random_ways":
            return [*shared, *words, "--without", "shim", "random_groups"]
        if name == "elastic" and self.options.nccl:  # PyTorch's may be older than the one that has ncclCommGrow
            words += ["--nccl", str(self.options.nccl.resolve())]
        return [*([] if name in ("death", "elastic") else shared), *words, name]  # a client of MPS that dies takes the others with it

    def _program(self, name: str, command: Sequence[str], log: Path, limit: float) -> int | None:
        """Its exit status, None where the time ended it. What it says goes to the log; its end to the terminal as well."""
        print(f"== {name}: {limit:.0f} s at most", flush=True)
        begin = time.monotonic()
        environment = {**_ucx_with_cuda(), **os.environ, "PYTHONUNBUFFERED": "1"}
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,  # where nothing below is done any more
                env=environment,
            )
            status = None
            try:
                _await(process.pid, max(1.0, limit - _GOODBYE_S))
            finally:
                # A signal's handler that raises inside Popen leaves its lock taken, and the next wait() does not end.
                with _held_back(signal.SIGINT, signal.SIGTERM):
                    status = process.poll()
                    if status is None:  # time ended it, or somebody ends this program
                        process.send_signal(signal.SIGINT)
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            process.wait(_GOODBYE_S)
                    # Ranks die with the program that started them, labs as well.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        said = log.read_text(errors="replace").splitlines()
        ended = f"none, ended after {limit:.0f} s" if status is None else str(status)
        log.write_text("".join(f"{line}\n" for line in (*said, _ENDED + ended)))
        print("\n".join(said[-60:]))
        print(f"== {name}: status {ended}, {time.monotonic() - begin:.0f} s", flush=True)
        return status

    # --- Telling

    def results(self) -> str:
        """The document."""
        by_group = {name: self.runs(name) for name in self.groups}
        calibration, kernels = self.out / "calibration.json", self.out / "kernels.txt"
        said = (read(str(calibration)) if calibration.exists() else None, kernels.read_text() if kernels.exists() else "")
        text = f"## Aims, {self.gpus} GPUs\n\n{aims.table(by_group, self.gpus, *said)}\n{self._failures()}"
        for check in (*checks(self.gpus), *late_checks(self.gpus)):
            path = self.out / f"{check.name}.txt"
            text += f"## {check.title}\n\n" + (f"```\n{path.read_text().strip()}\n```\n\n" if path.exists() else "Not run.\n\n")
        return text + "".join(self._section(section, by_group[section.group]) for section in self.sections)

    def _failures(self) -> str:
        """Programs that did not end well, and what they said last. That a later one had a result does not take it away. Then those that
        are no failures, as nothing but the time ended them."""
        failed = ended = ""
        for path in sorted((self.out / "parts").glob("*.log")):
            said, notes = path.read_text(errors="replace").splitlines(), []
            while said and said[-1].startswith(_NOTE):
                notes.insert(0, said.pop().removeprefix(_NOTE))
            if notes == ["status 0"]:
                continue
            if len(notes) == 1 and notes[0].startswith(_TIMED_OUT):
                became, wrong = self._became(path)
                if became and not wrong:
                    ended += f"- `{path.stem}`, {notes[0].removeprefix(_TIMED_OUT)}: {became}\n"
                    continue
                notes += [became] if became else []
                said += ["wrong:", *wrong] if wrong else []  # as the program would have said at its end
            why = ", ".join(notes) or "runs, or was cut off"
            errors = [at for at, line in enumerate(said) if line.startswith(("railweave: ", "wrong:", "WRONG:"))]
            error = said[errors[-1] : errors[-1] + 1] if errors else []
            told = [*error, *said[max(errors[-1] + 1 if errors else 0, len(said) - _TOLD_LINES) :]]
            failed += f"- `{path.stem}`, {why}" + (":\n\n```\n" + "\n".join(told) + "\n```\n\n" if told else "; it said nothing\n\n")
        return (f"## What failed\n\n{failed}" if failed else "") + (f"## What was ended as its time was over\n\n{ended}\n" if ended else "")

    def _became(self, log: Path) -> tuple[str, list[str]]:
        """Of a program that the time ended, by its log: what becomes of it, empty where it took longer than it may; and what is wrong with
        what it measured."""
        if any(log.stem == check.name for check in (*checks(self.gpus), *late_checks(self.gpus))):
            return "" if (self.out / f"{log.stem}.txt").exists() else "the next call begins it again", []
        group, result = self.groups.get(log.stem.partition(".")[0]), log.with_suffix(".json")
        if group is None or not result.exists():
            return "", []
        run = self._run_of(result)
        if run is None:
            return "", []
        cases = {case for section in self.sections if section.group == group.name for case in section.cases}
        measured = sum(len(_keys(run, case)) >= group.needs for case in cases)
        became = f"{measured} of {run.command.split().count(group.option)} measured, which are kept" if measured else ""
        return became, run.problems()

    def draw_gains(self, group: str) -> None:
        """A picture for each of its sections, beside OUT/results.md, which links those that are there. None without matplotlib."""
        try:
            from railweave.report.gpus import gains_picture
        except ImportError:
            return
        runs = self.runs(group)
        marks = aims.marks({group: runs}, self.gpus)
        for section in self.sections:
            rows: list[GainRow] = []
            for row in self._gain_rows(section, runs) if section.group == group else ():
                seconds = marks.get((group, row.name))
                rows.append(dataclasses.replace(row, wanted=row.rival_seconds / seconds if seconds else None))
            if rows:
                self._picture(section).write_text(gains_picture(rows, runs[0].systems()[0], section.title))

    def _gain_rows(self, section: Section, runs: Sequence[Run]) -> list[GainRow]:
        """In the order of its cases; what was measured twice counts as it was the last time."""
        from railweave.report.gpus import gain_rows

        rows: list[GainRow] = []
        for case in section.cases:
            told: set[Key] = set()
            found: list[GainRow] = []
            for run in reversed(runs):
                keys = _keys(run, case) - told
                told |= keys
                if keys and len(run.systems()) > 1:
                    found = gain_rows(_kept(run, keys)) + found
            rows += found
        return rows

    def _picture(self, section: Section) -> Path:
        return self.out / f"gains-{section.name}.svg"

    def draw(self) -> None:
        """A page with pictures for each command of `railweave bench`."""
        from railweave.report.gpus import page

        for path in sorted((self.out / "parts").glob("*.json")):
            if run := self._run_of(path):
                write_whole(path.with_suffix(".html"), page(run))

    def _section(self, section: Section, runs: Sequence[Run]) -> str:
        head = f"## {section.title}\n\n"
        if not section.cases:
            return f"{head}Nothing with {self.gpus} GPUs that is not above.\n\n"
        text, told = "", set()
        for run in reversed(runs):  # what was measured twice counts as it was the last time
            keys = {key for case in section.cases for key in _keys(run, case)} - told
            told |= keys
            if keys:
                text = _part(run, keys, self._shares(self.groups[section.group])) + text
        untold = [case for case in section.cases if not any(_keys(run, case) for run in runs)]
        if text and self._picture(section).exists():
            head += f"![How many times as fast as {runs[0].systems()[0]}; black marks: what is wanted]({self._picture(section).name})\n\n"
        return head + text + (f"Not run: {', '.join(f'`{case}`' for case in untold)}.\n\n" if untold else "")


Key = tuple[str, ...]


def _keys(run: Run, case: str) -> set[Key]:
    """What a run has of a case: a matrix, layers of a share of expert compute, a kind of work."""
    found: set[Key] = {(each.matrix,) for each in run.exchanges if each.matrix == case}
    found |= {(str(each.compute), each.skew) for each in run.layers if f"{each.compute:g}" == case}
    return found | {(each.work, each.matrix) for each in run.beside if each.work == case}


def _kept(run: Run, keys: set[Key]) -> Run:
    return dataclasses.replace(
        run,
        exchanges=[each for each in run.exchanges if (each.matrix,) in keys],
        layers=[each for each in run.layers if (str(each.compute), each.skew) in keys],
        beside=[each for each in run.beside if (each.work, each.matrix) in keys],
    )


def _part(run: Run, keys: set[Key], shared: bool) -> str:
    kept = _kept(run, keys)
    nccl = ", ".join(f"{version} ({name[6:-1]})" for name, version in run.versions.items() if name.startswith("nccl"))
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in run.settings.items())
    text = f"{run.date}, {run.gpus} × {run.machine['gpu']}, {run.machine['cpu']}, {run.machine['cores']} cores, "
    text += f"driver {run.versions['driver']}, PyTorch {run.versions['torch']}, NCCL {nccl}; {settings}."
    if shared:
        text += f" Ranks share GPUs {'under MPS' if 'mps' in run.settings else 'by time slices'}."
    text += f"\n\n`{run.command}`\n\n"
    text += "".join(f"{title[0].upper()}{title[1:]}:\n\n{markdown(head, rows)}\n" for title, head, rows in tables(kept))
    return text + "".join(f"- wrong: {problem}\n" for problem in kept.problems())


def _kind(case: str) -> str:
    """Its pattern, without sizes; of those inside nodes they are one."""
    return "inside" if "inside" in case else case.partition(":")[0].partition("-")[0]


def _await(pid: int, seconds: float) -> None:
    """Returns when that child has ended, or the time is over."""
    ended = os.pidfd_open(pid)
    try:
        select.select([ended], [], [], seconds)
    finally:
        os.close(ended)


@contextlib.contextmanager
def _held_back(*signals: signal.Signals) -> Iterator[None]:
    """They come when this is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _calibrated() -> bool:
    """Does this machine have a calibration that holds for what runs here?"""
    try:
        kept()
    except Error:
        return False
    return True


def _ucx_with_cuda() -> dict[str, str]:
    """The libucx wheel's, where it is installed, for slots of NICs on GPUs."""
    found = importlib.util.find_spec("libucx")
    places = list(found.submodule_search_locations or ()) if found else []
    return {"RAILWEAVE_UCX_LIBRARY": str(Path(places[0]) / "lib" / "libucp.so.0")} if places else {}


def _sanitizer() -> list[str]:
    """For gpu_run.py, where CUDA's is installed. Ranks have a GPU each: whether it lets kernels of one GPU run beside each other, which
    wait for one another, nobody has tried."""
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(_CUDA / "bin"))
    return ["--sanitizer", found] if found else []


def _nccl_of_pytorch() -> Path:
    found = importlib.util.find_spec("nvidia.nccl")
    places = list(found.submodule_search_locations or ()) if found else []
    return next((path for place in places if (path := Path(place) / "lib" / "libnccl.so.2").exists()), Path("libnccl.so.2"))


def _lacking(gpus: int) -> str:
    """What this machine lacks for a run; empty: nothing that can be seen at once."""
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no PyTorch; run it with the Python of your PyTorch programs"
    found = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if found < gpus:
        return f"--gpus {gpus}, and this machine has {found} of NVIDIA's"
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = found if said is None else len([each for each in said.split(",") if each.strip() not in ("", "-1")])
    return "" if shown >= gpus else f"--gpus {gpus}, and CUDA_VISIBLE_DEVICES={said} shows {shown}"


def _gpus_of(out: Path) -> int:
    """Of the machine that OUT has results of; 0: none that says so. Labs take as many as there are, whatever was asked for."""
    found = [0]
    for path in (out / "parts").glob("*.json"):
        with contextlib.suppress(Error):  # told where it is looked for
            run = Run.load(path)
            found += [] if "nodes" in run.settings else [run.gpus]
    return max(found)


def main() -> int:
    """What the process ends with. Known errors are a line."""
    try:
        return _evaluate()
    except (Error, OSError) as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("evaluate.py: interrupted; what was measured is kept", file=sys.stderr)
        return 128 + signal.SIGINT


def _evaluate() -> int:
    """Runs what is missing, then writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", type=int, help="all of them are used; one, or an even number; by default those that OUT is of, or 4")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for all of this call")
    parser.add_argument("--nccl", type=Path, help="libnccl.so.2 of a newer release: one more rival in every exchange")
    parser.add_argument("--exchange", type=Path, help="the program gpu_exchange (make cuda), for the section kernels")
    parser.add_argument("--tables", action="store_true", help="only write OUT/results.md with its pictures, and a page for each command")
    parser.add_argument("names", nargs="*", metavar="NAME", help="sections and checks; by default all")
    options = parser.parse_intermixed_args()
    measured = _gpus_of(options.out)
    options.gpus = options.gpus if options.gpus is not None else measured or 4
    if options.gpus < measured:
        parser.error(f"--gpus {options.gpus}, and {options.out} has results of {measured}; expected a folder of its own for each machine")
    if options.gpus != 1 and (options.gpus < 2 or options.gpus % 2):
        parser.error("--gpus: expected one, or an even number, as labs have nodes of half of them")
    evaluation = Evaluation(options)
    known = [
        *(each.name for each in (*checks(options.gpus), *late_checks(options.gpus))),
        *(section.name for section in evaluation.sections),
    ]
    if unknown := set(options.names) - set(known):
        parser.error(f"no section or check {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if not options.tables and (lacking := _lacking(options.gpus)):
        parser.error(f"{lacking}; what is there already is told by --tables")
    (options.out / "parts").mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with what it started
    good = options.tables or evaluation.run(evaluation.with_calibration(options.names) or known)
    if options.tables:
        for name in evaluation.groups:
            evaluation.draw_gains(name)
    evaluation.write()
    if options.tables:
        evaluation.draw()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
