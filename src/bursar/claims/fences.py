"""Fences: a number that grows, to be checked wherever a claimed thing is used.

A fence is (epoch of the store, phase of the name) in one 63-bit number, so that one comparison
orders them. A *guard* remembers the highest fence it saw for a name and refuses lower ones: an
owner that was deposed while it slept carries a lower one than its successor. Sharers of one phase
carry the same fence, so a guard takes them all.

In shadow mode nothing is held, so nobody may write as if it were: the fence is then SHADOW_FENCE, lower
than every real one, and a guard refuses it even if it saw none yet.
"""

from __future__ import annotations

from bursar.errors import Refused, UsageError

PHASE_BITS = 43
EPOCH_MAX = 2**20 - 1
HOUR_NS = 3_600_000_000_000
HEADER = "Bursar-Fence"
SHADOW_FENCE = 0
"""No phase is 0, so no owner ever carries this."""


class StaleFence(Refused):
    """A guard has seen a later owner. Whoever carries this fence owns the thing no more."""


def make_fence(epoch: int, phase: int) -> int:
    assert 0 <= epoch <= EPOCH_MAX and 1 <= phase < 2**PHASE_BITS, (epoch, phase)
    return epoch << PHASE_BITS | phase


def make_epoch(wall_ns: int) -> int:
    """The epoch of a store that is set up now: hours since 1970. It only has to be larger than that
    of the store that was lost."""
    return min(max(wall_ns // HOUR_NS, 0), EPOCH_MAX)


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
