"""What is kept of advice for starting ranks: for each GPU of the node its address, cores, memory and variables, as lines of text.

JSON would take longer to import than all the rest of a start.
"""

from __future__ import annotations

from railweave.launch.errors import LaunchError, NoAdviceError

TYPE_CHECKING = False  # what type checkers take for true; the name in `typing` would have to be imported
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

HEAD = "railweave-placement 1"
CPU_LIMIT = 1 << 16
"""More than Linux can be built for (CONFIG_NR_CPUS: 8192), so that a damaged file asks for no great sets."""
_FIELDS = ("name", "bus_id", "minor", "uuid", "cpus", "memory", "nics")


class Placement:
    """Of one GPU. Texts are empty where something is not known."""

    def __init__(self, fields: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self.name = fields.get("name", "")
        self.bus_id = fields.get("bus_id", "")
        self.minor = fields.get("minor", "")
        self.uuid = fields.get("uuid", "")
        self.nics = fields.get("nics", "")
        self.cpus = cpu_set(fields.get("cpus", ""))
        self.memory = cpu_set(fields.get("memory", ""))
        self.environment = dict(environment)


def cpu_set(text: str) -> frozenset[int]:
    """`0-3,8`; also of NUMA nodes. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        if part:
            first, dash, last = part.partition("-")
            low, high = int(first), int(last if dash else first)
            if not 0 <= low <= high < CPU_LIMIT:
                raise ValueError(f"'{part[:40]}' is no range below {CPU_LIMIT}")
            found.update(range(low, high + 1))
    return frozenset(found)


def cpu_text(cpus: Iterable[int]) -> str:
    """The inverse of `cpu_set`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def write(document: Mapping[str, Any]) -> str:
    """Lines from advice in its JSON form."""
    lines = [HEAD]
    for rank in document["ranks"]:
        gpu = rank["gpu"]
        values = {
            "name": gpu["name"],
            "bus_id": gpu["bus_id"],
            "minor": "" if gpu["minor"] is None else str(gpu["minor"]),
            "uuid": gpu["uuid"] or "",
            "cpus": rank["cpus"] or "",
            "memory": ",".join(str(node) for node in rank["memory"] or ()),
            "nics": ",".join(nic["device"] or nic["name"] for nic in rank["nics"]),
        }
        for field in _FIELDS:
            if not isinstance(values[field], str) or "\n" in values[field]:
                raise LaunchError(f"advice: {field} {values[field]!r}; expected a text of one line")
        lines += ["gpu", *(f"{field} {values[field]}" for field in _FIELDS)]
        for name, value in rank["environment"].items():
            if not isinstance(value, str) or {"\n", "\0"} & set(value) or not name.isidentifier():
                raise LaunchError(f"advice: variable {name!r} cannot be set; expected a name, and a value of one line")
            lines.append(f"env {name}={value}")
    return "\n".join(lines) + "\n"


def write_none(reason: str) -> str:
    """Lines that say why there is no advice, so that not every rank looks again."""
    return f"{HEAD}\nnone {' '.join(reason.split())}\n"


def read(text: str, source: str) -> list[Placement]:
    """The inverse of `write` and `write_none`. Raises LaunchError with the line, or NoAdviceError."""
    lines = text.split("\n")
    if lines[0] != HEAD or lines[-1] != "":
        raise LaunchError(f"{source}: not a whole placement file; expected '{HEAD}' and complete lines")
    found: list[tuple[dict[str, str], dict[str, str]]] = []
    for number, line in enumerate(lines[1:-1], 2):
        word, _, rest = line.partition(" ")
        if word == "gpu":
            found.append(({}, {}))
        elif found and word == "env" and "=" in rest:
            name, _, value = rest.partition("=")
            found[-1][1][name] = value
        elif not found and word == "none":
            raise NoAdviceError(rest)
        elif found and word in _FIELDS:
            found[-1][0][word] = rest
        else:
            raise LaunchError(f"{source}:{number}: '{line[:60]}'; expected gpu, env NAME=VALUE, or one of {', '.join(_FIELDS)}")
    if not found:
        raise LaunchError(f"{source}: no GPU; expected at least one")
    try:
        return [Placement(fields, environment) for fields, environment in found]
    except ValueError as error:
        raise LaunchError(f"{source}: {error}; expected CPUs such as 0-3,8") from None


def read_advice(text: str, source: str) -> list[Placement]:
    """From what `railweave advise --format json` wrote. Raises LaunchError."""
    import json

    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LaunchError(f"{source}: {error}; expected what `railweave advise --format json` writes") from None
    if not isinstance(document, dict) or document.get("format") != "railweave-advice" or document.get("version") != 1:
        raise LaunchError(f"{source}: not version 1 of railweave-advice; expected what `railweave advise --format json` writes")
    try:
        return read(write(document), source)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise LaunchError(f"{source}: {type(error).__name__} at {error}; expected schema/advice.schema.json") from None
