"""Fences: a number that grows, to be checked wherever a claimed thing is used.

A fence is the epoch of the store and the phase of the name in one 63-bit number, so that one comparison
orders them. The epoch is the millisecond in which the resource was set up in this store, and whoever sets
it up waits until that is over: a store that is set up later has a larger one, however soon, as long as
clocks are not set back. Phases are added to it, 2**20 for each millisecond: no name is granted so often
that it reaches the fences of the store that comes after. A store that was adopted (`bursar store adopt`:
restored from a backup, or made anew) has a later epoch too.

A *guard* remembers the highest fence it saw for a name and refuses lower ones: an owner that was deposed
while it slept carries a lower one than its successor. Sharers of one phase carry the same fence, so a
guard takes them all.

In shadow mode nothing is held, so nobody may write as if it were: the fence is then SHADOW_FENCE, lower
than every real one, and a guard refuses it even if it saw none yet.
"""

from __future__ import annotations

from bursar.errors import Refused, UsageError
from bursar.world import MILLISECOND_NS, SECOND_NS

PHASE_BITS = 20
BASE = 2**62
"""Above every fence of the epochs that were hours, 43 bits up, until 2029."""

EPOCH_MAX = 2**42 - 1
EPOCH_ZERO_NS = 1_577_836_800 * SECOND_NS
"""2020 in UTC: 42 bits of milliseconds last until 2159."""

HEADER = "Bursar-Fence"
SHADOW_FENCE = 0
"""No phase is 0, so no owner ever carries this."""


class StaleFence(Refused):
    """A guard has seen a later owner. Whoever carries this fence owns the thing no more."""


def make_fence(epoch: int, phase: int) -> int:
    assert 0 <= epoch <= EPOCH_MAX and phase >= 1, (epoch, phase)
    return BASE + (epoch << PHASE_BITS) + phase


def read_phase(epoch: int, fence: int) -> int:
    """The phase of a fence of that epoch."""
    return fence - BASE - (epoch << PHASE_BITS)


def make_epoch(wall_ns: int, above: int = -1) -> int:
    """The epoch of a store that is set up now, where none up to `above` can be used."""
    return min(max((wall_ns - EPOCH_ZERO_NS) // MILLISECOND_NS, above + 1, 0), EPOCH_MAX)


def check_real(name: str, fence: int) -> None:
    """Raises StaleFence for a fence that no owner was ever given."""
    if fence <= SHADOW_FENCE:
        raise StaleFence(f"{name}: fence {fence} is nobody's: a claim in shadow mode holds nothing")


class Guard:
    """Remembers in memory. For a process that is itself the thing that is guarded."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def check(self, name: str, fence: int) -> None:
        """Raises StaleFence. Check and use must not be separated by a wait."""
        check_real(name, fence)
        highest = self._highest.get(name, 0)
        if fence < highest:
            raise StaleFence(f"{name}: fence {fence} is older than {highest}, which was seen here")
        self._highest[name] = fence


def write_header(fences: dict[str, int]) -> str:
    """The value of the HTTP header `Bursar-Fence`: "vm-7"=12, "host-1"=9."""
    for name in fences:
        if '"' in name or "\\" in name or not name.isascii():
            raise UsageError(f"{name!r} cannot stand in an HTTP header: use plain names")
    return ", ".join(f'"{name}"={fence}' for name, fence in fences.items())


def read_header(value: str) -> dict[str, int]:
    """Raises UsageError for a header that is not one."""
    fences = {}
    for item in value.split(","):
        name, sign, number = item.strip().rpartition("=")
        if not sign or len(name) < 3 or name[0] != '"' or name[-1] != '"' or not number.isdecimal():
            raise UsageError(f'{HEADER}: {item.strip()[:60]!r} is not "name"=number')
        if int(number) >= 2**63:
            raise UsageError(f"{HEADER}: {number[:30]} is no fence")
        fences[name[1:-1]] = int(number)
    return fences


def check_header(guard: Guard, value: str | None, name: str) -> None:
    """For a server that guards `name`: take the request, or raise StaleFence or UsageError."""
    if value is None:
        raise UsageError(f"{name} is guarded: send the header {HEADER} of the claim that covers it")
    fences = read_header(value)
    if name not in fences:
        raise UsageError(f"{HEADER} has no fence for {name}: claim it first")
    guard.check(name, fences[name])
