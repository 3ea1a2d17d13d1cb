"""The `railweave` command, also as `python -m railweave`."""

from __future__ import annotations

import sys


def main() -> None:
    """`railweave run` stands before every rank of a job, and `railweave doctor` is asked of many machines in turn: both do without what the
    other commands import, the latter where its command line is a plain one."""
    try:
        if sys.argv[1:2] == ["run"]:
            from railweave.launch.start import main as start

            sys.exit(start(sys.argv[2:]))
        from railweave.ending import open_what_is_closed, write_all_of_it

        open_what_is_closed()
        write_all_of_it()
        if sys.argv[1:2] == ["doctor"]:
            import gc

            gc.set_threshold(100_000)  # of one machine's facts almost nothing is garbage, and looking for it takes time
            from railweave.doctor.command import start as examine
            from railweave.ending import at_once, or_told

            status = or_told(lambda: examine(sys.argv[2:]))
            if status is not None:
                at_once(status)
        from railweave.cli import main as commands

        commands()
    except KeyboardInterrupt:  # also while modules load, before a command could see to it
        from railweave.ending import interrupted

        interrupted()


if __name__ == "__main__":
    main()
