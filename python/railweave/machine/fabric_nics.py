"""Which ports of a machine are its GPU network: the ones that somebody names, else those of the fastest rate."""

from __future__ import annotations

from railweave.errors import Error
from railweave.machine.facts import Known, Machine, Nic, Unknown

TYPE_CHECKING = False  # see launch/placement.py
if TYPE_CHECKING:
    from collections.abc import Sequence


class UnknownNicError(Error):
    """A NIC was named that is not here; the text has those that are."""


def named_nics(option: str | None) -> list[str]:
    """The names of `--nics`; none where it was not given. Raises UnknownNicError where it names none."""
    if option is None:
        return []
    names = [name.strip() for name in option.split(",") if name.strip()]
    if not names:
        raise UnknownNicError(f"'{option}' names no NIC; expected a list such as mlx5_0,mlx5_1")
    return names


def fabric_nics(machine: Machine, named: Sequence[str] = ()) -> tuple[tuple[Nic, ...], str]:
    """The ports, and why these: named ones (`mlx5_0`, `mlx5_0:2`); else RDMA ports of the fastest rate here, because slower ones carry
    storage or management; physical ones, unless there are virtual ones alone, as in a pod. A rate that a port of a link that is down
    does not tell counts as fast: a dead rail must not hide itself.

    Raises UnknownNicError for a name that no port has.
    """
    nics = machine.nics.value if isinstance(machine.nics, Known) else ()
    if named:
        # Without a port the first one is meant, as findings name it.
        by_name = {nic.name: nic for nic in reversed(nics)} | {f"{nic.name}:{nic.port}": nic for nic in nics}
        missing = [name for name in named if name not in by_name]
        if missing:
            raise UnknownNicError(f"no NIC {', '.join(missing)} here; there are {', '.join(nic.name for nic in nics) or 'none'}")
        # A port that is named twice, or once with its number, does not carry twice as much.
        return tuple({(nic.name, nic.port): nic for nic in (by_name[name] for name in named)}.values()), "named"
    rdma = [nic for nic in nics if isinstance(nic.rdma, Known) and nic.rdma.value is not None]
    ports = [nic for nic in rdma if not is_virtual(machine, nic)] or rdma
    fastest = max((nic.rate_bps.value for nic in ports if isinstance(nic.rate_bps, Known) and is_up(nic)), default=0)
    chosen = [nic for nic in ports if not is_up(nic) or not isinstance(nic.rate_bps, Known) or nic.rate_bps.value == fastest]
    if not ports:
        return (), "no RDMA port here"
    if not any(is_up(nic) for nic in chosen):
        unsure = sum(isinstance(nic.state, Unknown) for nic in chosen)
        return tuple(ports), f"all RDMA ports; {'none is up' if not unsure else f'none is known to be up, of {unsure} it is unknown'}"
    left = len(ports) - len(chosen)
    slower = f"; {left} slower ones serve something else" if left else ""
    return tuple(chosen), f"RDMA ports of the fastest rate, {fastest / 1e9:g} Gbit/s{slower}; --nics names others"


def is_up(nic: Nic) -> bool:
    """Whether a port is known to be up."""
    return isinstance(nic.state, Known) and nic.state.value in ("active", "up")


def is_down(nic: Nic) -> bool:
    """Whether no traffic passes, as far as known; an RDMA port without its subnet manager stays in `init`."""
    return isinstance(nic.state, Known) and nic.state.value in {"down", "init", "disabled", "lowerlayerdown"}


def is_virtual(machine: Machine, nic: Nic) -> bool:
    """Whether a port has no wire of its own: on a virtual function of SR-IOV, or on a sub-function, which needs no address on the bus."""
    if isinstance(nic.subfunction, Known) and nic.subfunction.value is not None:
        return True
    device = machine.pci_device(nic.bus_id.value) if isinstance(nic.bus_id, Known) and nic.bus_id.value is not None else None
    return device is not None and isinstance(device.physical_function, Known) and device.physical_function.value is not None
