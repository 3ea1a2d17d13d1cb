"""`railweave run`: becomes the program, as the rank that it is."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps, which brings enum and more: longer than all of this
import os
import sys

from railweave.launch import cache
from railweave.launch.bind import bind_cpus, bind_memory
from railweave.launch.errors import LaunchError, NoAdviceError
from railweave.launch.gpus import gpus_of
from railweave.launch.placement import read_advice
from railweave.launch.rank import find_rank

TYPE_CHECKING = False  # see placement.py
if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.launch.placement import Placement
    from railweave.launch.rank import Rank

HELP = """\
Usage: railweave run [OPTIONS] [--] CMD [ARGS]...

  Run a command as one rank: bind it to the cores and memory of its GPU and set
  what `railweave advise` says, then become the command. Finds its rank from
  torchrun, Open MPI, MPICH, srun, or a Kubernetes indexed job.

  mpirun --bind-to none -np 8 railweave run -- ./app
  srun --cpu-bind=none railweave run --explain -- ./app
  torchrun --no-python --nproc-per-node=8 railweave run -- python train.py

Options:
  --for [bandwidth|latency]  What the job waits for.  [default: bandwidth]
  --advice FILE              Advice to follow (railweave advise --format json),
                             instead of this machine's own.
  --shim nccl                Preload the library that routes NCCL's send, receive
                             and all-to-all over all paths.
  --override                 Replace what the user or the launcher set: CPU
                             affinity, memory policy, variables.
  --explain                  Say on standard error what was done and why, and
                             what `railweave doctor` finds wrong with the rank.
  -h, --help                 Show this message and exit.
"""
SHIMS = ("nccl",)
_MOST_ADVICE = 1 << 24  # characters; that of 8 GPUs has 11,000, and what is cut off is no JSON
_NOT_FOUND, _CANNOT_EXECUTE = 127, 126  # as shells say it


class _Options:
    def __init__(self) -> None:
        self.workload = "bandwidth"
        self.advice = ""
        self.shim = ""
        self.override = False
        self.explain = False
        self.command: list[str] = []


def main(arguments: Sequence[str]) -> int:
    """Returns only when the program was not started: the exit status, after a line on standard error."""
    if None in (sys.stdin, sys.stdout, sys.stderr):  # closed, and the program has it so again: these are open until then
        from railweave.ending import open_what_is_closed

        open_what_is_closed()
    try:
        if any(word in ("-h", "--help") for word in arguments[: _end_of_options(arguments)]):
            from railweave.ending import or_told

            or_told(lambda: print(HELP, end="", flush=True))
            return 0
        return _start(_parse(arguments))
    except LaunchError as error:
        _say(str(error))
        return error.status


def _end_of_options(arguments: Sequence[str]) -> int:
    """Where the command begins: after `--`, or at the first word that is no option."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "--":
        at += 2 if arguments[at] in ("--for", "--advice", "--shim") else 1
    return min(at, len(arguments))


def _parse(arguments: Sequence[str]) -> _Options:
    options = _Options()
    end = _end_of_options(arguments)
    words = iter(arguments[:end])
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--for", "--advice", "--shim"):
            value = value if equals else next(words, "")
            if not value:
                raise LaunchError(f"{name} needs a value; see railweave run --help", 2)
            setattr(options, {"--for": "workload"}.get(name, name[2:]), value)
        elif word in ("--override", "--explain"):
            setattr(options, word[2:], True)
        else:
            raise LaunchError(f"no such option: {word}; the command's own options stand after it, or after --", 2)
    options.command = list(arguments[end:])
    if options.command[:1] == ["--"]:
        options.command = options.command[1:]
    if not options.command:
        raise LaunchError("no command; expected railweave run [OPTIONS] -- CMD [ARGS]", 2)
    if not options.command[0]:
        raise LaunchError("the command is an empty word; expected railweave run [OPTIONS] -- CMD [ARGS]", 2)
    if options.workload not in ("bandwidth", "latency"):
        raise LaunchError(f"--for {options.workload}; expected bandwidth or latency", 2)
    if options.shim and options.shim not in SHIMS:
        raise LaunchError(f"--shim {options.shim}; expected {' or '.join(SHIMS)}", 2)
    return options


def _say(text: str) -> None:
    """On standard error, of which nothing is left for the program to hear of: a reader that is gone, a full disk, a closed stream are no
    reason to start nothing."""
    if sys.stderr is None:
        return
    try:  # noqa: SIM105 - contextlib takes a start too long
        print(f"railweave run: {text}", file=sys.stderr, flush=True)
    except OSError:
        pass


class _Voice:
    """What is said on standard error: explanations when asked for, warnings from one rank of a node unless all shall explain."""

    def __init__(self, rank: Rank, explain: bool) -> None:
        self.rank = rank
        self.everything = explain

    def explain(self, text: str) -> None:
        if self.everything:
            _say(f"rank {self.rank.local}: {text}")

    @property
    def warns(self) -> bool:
        return self.everything or self.rank.local == 0

    def warn(self, text: str) -> None:
        if self.warns:
            _say(f"rank {self.rank.local}: warning: {text}")


def _start(options: _Options) -> int:
    rank = find_rank(os.environ)
    voice = _Voice(rank, options.explain)
    of = "" if rank.size is None else f" of {rank.size}"
    voice.explain(f"local rank {rank.local}{of} ({'no launcher' if rank.launcher == 'none' else rank.launcher})")
    environment = own_environment()
    mine = _gpus(options, rank, voice)
    for gpu in mine:
        voice.explain(f"GPU {gpu.name} {gpu.bus_id}".rstrip() + (f", NIC {gpu.nics}" if gpu.nics else ""))
    if rank.launcher == "none" and len(mine) > 1:
        voice.explain(
            "no launcher above: placed for all these GPUs, as are the ranks of a launcher below, which inherit it; "
            "for each rank's own placement start `railweave run` below the launcher"
        )
    if mine:
        _bind(mine, options, voice)
        _set(environment, mine, options, voice)
    if options.shim:
        _preload(environment, voice)
    if options.explain:
        _examine(environment, voice)
    return _become(options.command, environment)


def _gpus(options: _Options, rank: Rank, voice: _Voice) -> list[Placement]:
    node = _node(options, voice)
    mine, why_none = gpus_of(rank, node, os.environ)
    if node and not mine:
        voice.warn(f"no GPU for this rank: {why_none}; nothing is bound or set")
    return mine


def _node(options: _Options, voice: _Voice) -> list[Placement]:
    if options.advice:
        try:
            with open(options.advice, encoding="utf-8") as file:
                text = file.read(_MOST_ADVICE)
        except OSError as error:
            raise LaunchError(f"--advice {options.advice}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise LaunchError(f"--advice {options.advice}: not UTF-8 text; expected JSON") from None
        return read_advice(text, options.advice)
    try:
        return cache.placements(options.workload, _work_out)
    except NoAdviceError as error:  # a job does not fail for want of advice
        voice.warn(f"{error}; nothing is bound or set")
        return []


def _work_out(workload: str) -> str:
    _hasten()
    from railweave.advise.live import placement_text

    return placement_text(workload)


def _hasten() -> None:
    """For the little that this process does before the program takes it over."""
    import gc

    gc.disable()  # of a machine's facts almost nothing is garbage, and looking for it takes time
    sys.setdlopenflags(os.RTLD_LAZY)  # of the thousands of functions that the core could call, few are called and need to be found


def _bind(gpus: list[Placement], options: _Options, voice: _Voice) -> None:
    cpus: frozenset[int] = frozenset().union(*(gpu.cpus for gpu in gpus))
    memory: frozenset[int] = frozenset().union(*(gpu.memory for gpu in gpus))
    if not all(gpu.cpus for gpu in gpus):
        voice.warn("the cores near its GPU are not known; not bound")
        return
    if bind_cpus(cpus, options.override, voice.explain, voice.warn) and memory:
        bind_memory(memory, options.override, voice.explain, voice.warn)


def _set(environment: dict[str, str], gpus: list[Placement], options: _Options, voice: _Voice) -> None:
    """Variables that all of the rank's GPUs agree on; a program with several GPUs and several NICs chooses by itself."""
    for name, value in gpus[0].environment.items():
        if any(gpu.environment.get(name) != value for gpu in gpus):
            voice.explain(f"{name} is left alone: the rank's GPUs differ in it")
        elif name in environment and environment[name] != value and not options.override:
            voice.warn(f"{name}={environment[name]} was set before and is kept (advice: {value}); --override replaces it")
        else:
            environment[name] = value
            voice.explain(f"{name}={value}")
            if name == "NCCL_TOPO_FILE" and not os.path.isfile(value):
                voice.warn(f"{name}={value}: no such file here; NCCL goes without it")


def _preload(environment: dict[str, str], voice: _Voice) -> None:
    from railweave.nccl import ShimError, preloaded, why_no_device_library

    try:
        environment.update(preloaded(environment))
        missing = why_no_device_library(environment) if voice.warns else ""
    except ShimError as error:
        raise LaunchError(f"--shim: {error}") from None
    voice.explain(f"LD_PRELOAD={environment['LD_PRELOAD']}")
    if missing:
        voice.warn(f"no device library: {missing}; everything is left to NCCL; build one (make cuda) and set RAILWEAVE_CUDA_LIBRARY to it")


def _examine(environment: dict[str, str], voice: _Voice) -> None:
    """Doctor's findings about the rank as it will be. Takes as long as `railweave doctor`, so only who asks for explanations has them."""
    try:
        from railweave.doctor.job import lines_before_start

        lines = lines_before_start(environment)
    except Exception as error:  # whatever it is: what only explains must not keep a program from starting
        voice.warn(f"doctor cannot examine this rank: {type(error).__name__}: {error}")
        return
    for line in lines:
        voice.explain(line)


def own_environment() -> dict[str, str]:
    """As it was before Python started, which in the C locale sets LC_CTYPE for its children (PEP 538)."""
    environment = dict(os.environ)
    if "LC_CTYPE" in environment:
        try:
            with open("/proc/self/environ", "rb") as file:
                given = any(entry.startswith(b"LC_CTYPE=") for entry in file.read().split(b"\0"))
        except OSError:
            given = True
        if not given:
            del environment["LC_CTYPE"]
    return environment


def _become(command: list[str], environment: dict[str, str]) -> int:
    # Python ignores these two, and what is ignored stays so in the program: a pipe's reader that leaves would go unnoticed.
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        raise LaunchError(f"{command[0]}: not found", _NOT_FOUND) from None
    except OSError as error:
        raise LaunchError(f"{command[0]}: {error.strerror}", _CANNOT_EXECUTE) from None
