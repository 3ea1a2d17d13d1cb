"""Which switch belongs to which rail, so that a NIC whose cable leads elsewhere can be told: by a pattern of switch names, or by other
machines of the fleet."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence

from railweave.doctor.check import Verdict, clear, fires, unknown

Cables = Mapping[str, "str | None"]
"""The switch at the other end of each fabric NIC's cable, None where it is not known; by NIC, in the order of their addresses."""


class Rails(ABC):
    """A reference for cables."""

    @abstractmethod
    def judge(self, nic: str, switch: str, cables: Cables) -> Verdict:
        """A NIC whose cable leads to that switch, on a machine with these cables."""


class NamedRails(Rails):
    """Switches have the number of their rail in their names; NICs are rails in their order."""

    def __init__(self, pattern: str) -> None:
        """Raises ValueError for a pattern without exactly one group."""
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ValueError(f"'{pattern}' is no regular expression: {error}") from error
        if self._pattern.groups != 1:
            raise ValueError(f"'{pattern}' has {self._pattern.groups} groups, expected one: the rail's number, as in 'leaf(\\d+)'")

    def judge(self, nic: str, switch: str, cables: Cables) -> Verdict:
        """Numbers may begin anywhere (a pod's leafs 9 to 16): what must be the same is their distance to the NIC's place."""
        known = ((place, name, other) for place, (name, other) in enumerate(cables.items()) if other is not None)
        distances = {name: distance for place, name, other in known if (distance := self._distance(place, other)) is not None}
        if nic not in distances:
            return unknown(f"goes to {switch}, whose name has no number where '{self._pattern.pattern}' has its group")
        usual, count = Counter(distances.values()).most_common(1)[0]
        if 2 * count <= len(distances):
            return unknown(f"goes to {switch}; numbers of the switches and order of the NICs agree for no majority")
        if distances[nic] == usual:
            return clear(f"goes to {switch}, the switch of its rail")
        place = list(cables).index(nic)
        return fires(f"goes to {switch}; it is NIC {place} here, whose switch has number {place + usual}")

    def _distance(self, place: int, switch: str) -> int | None:
        found = self._pattern.search(switch)
        return int(found[1]) - place if found is not None and (found[1] or "").isdecimal() else None


class FleetRails(Rails):
    """The cables of other machines that were recorded with the same salt."""

    def __init__(self, others: Sequence[Cables]) -> None:
        self._others = others

    def judge(self, nic: str, switch: str, cables: Cables) -> Verdict:
        """A switch whose cables lead to another NIC on the other machines is that one's rail. NICs of two machines are the same by their
        places, as rails are counted, and not by names, which the kernel gives in the order in which it finds devices; places are the same
        only among as many."""
        names = list(cables)
        place = names.index(nic)
        knowing = [others for others in self._others if switch in others.values()]
        alike = [list(others.values()) for others in knowing if len(others) == len(cables)]
        if not knowing:
            return unknown(f"goes to {switch}, where no other machine here has a NIC")
        if not alike:
            counts = " or ".join(map(str, sorted({len(others) for others in knowing})))
            return unknown(f"goes to {switch}; {len(cables)} fabric NICs here and {counts} on other machines there have no common places")
        there = Counter(at for others in alike for at, other in enumerate(others) if other == switch)
        # This machine counts as well: where two rails share a switch, one wrong cable elsewhere would outvote the rail that lacks it.
        if there[place] and (there[place] == max(there.values()) or 2 * (there[place] + 1) > len(alike) + 1):
            return clear(f"goes to {switch}, as on {there[place]} other machine{'s' if there[place] > 1 else ''}")
        usual, count = there.most_common(1)[0]
        which = f"NIC {usual}, {names[usual]} here"
        if count < 2:
            return unknown(f"goes to {switch}, where one other machine has {which}; which of both is wrong takes a third")
        return fires(f"goes to {switch}, where {count} other machines have {which}; it is NIC {place}")
