"""What can go wrong with a lab."""

from __future__ import annotations

import os

from railweave.errors import Error


class LabError(Error):
    """A lab could not be built, found or used; the text says what is missing and how to get it."""


def what_rights_it_needs() -> str:
    """What to tell who was refused the making of namespaces or links."""
    if os.geteuid() != 0:
        return "a lab needs root to make network namespaces: run the command with sudo"
    return (
        "a lab needs the capabilities SYS_ADMIN and NET_ADMIN, which this root lacks (a container?): "
        "run it with `docker run --privileged`, or with --cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt apparmor=unconfined"
    )
