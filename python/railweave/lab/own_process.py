"""Railweave's own helper processes, run without the working directory on their path.

`python -m` looks for every module in the working directory first, before the standard library: whoever leaves a random.py there would have
it run, and by a lab as root. `-P` is against that, but only from Python 3.11 on, and PYTHONSAFEPATH would change the programs that a lab
starts, too. So Python is given this file, from here and from agent.sh; it runs the module that its first argument names.
"""

from __future__ import annotations

import sys


def own_process(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module as a process of its own, as `python -m` would with that of this process."""
    return [sys.executable, __file__, module, *arguments]


def _run() -> None:
    if not getattr(sys.flags, "safe_path", False):  # new in Python 3.11
        del sys.path[0]  # this file's folder: `program` and `launch` are nobody's names but this room's
    import runpy
    from pathlib import Path

    # Of a Railweave that is not installed the command may know by the working directory alone. Last, as the standard library comes first.
    home = str(Path(__file__).resolve().parents[2])
    if home not in sys.path:
        sys.path.append(home)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
