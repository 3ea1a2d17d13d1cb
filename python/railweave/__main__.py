"""The `railweave` command, also as `python -m railweave`."""

from __future__ import annotations

import sys


def main() -> None:
    """`railweave run` stands before every rank of a job, so it does without what the other commands import."""
    try:
        if sys.argv[1:2] == ["run"]:
            from railweave.launch.start import main as start

            sys.exit(start(sys.argv[2:]))
        from railweave.cli import main as commands

        commands()
    except KeyboardInterrupt:  # also while modules load, before a command could see to it
        sys.exit(130)


if __name__ == "__main__":
    main()
