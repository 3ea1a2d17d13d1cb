"""`python -m railweave` is the same as the `railweave` command."""

from railweave.cli import main

main()
