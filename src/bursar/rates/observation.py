"""What a server sees of its tenants between two reports: the raw numbers of every estimate."""

from __future__ import annotations

from collections.abc import Sequence

from bursar.estimate import has_moved
from bursar.rates.messages import Row
from bursar.rates.scheduler import Whole


class Observation:
    """Arrivals by tenant, whether each queue ran empty, and how busy the server was, since the
    last report that carried them. Counts only; nothing that safety rests on."""

    def __init__(self, tenants: int) -> None:
        self.arrived = [0] * tenants
        self.ran_empty = [True] * tenants
        self.served = 0
        self.busy_ns = 0
        self.since = 0

    def add_tenant(self) -> None:
        self.arrived.append(0)
        self.ran_empty.append(True)

    def reset(self, now: int, pending: Sequence[int] | Whole) -> None:
        """Begin anew: a queue with something in it has not run empty yet."""
        for index in range(len(self.arrived)):
            self.arrived[index] = 0
            self.ran_empty[index] = not pending[index]
        self.served = 0
        self.busy_ns = 0
        self.since = now


def is_news(old: tuple[Row, ...] | None, new: tuple[Row, ...]) -> bool:
    """Whether a report with these rows tells the controller more than the last one did. What was
    dispatched and allowed is always told: reservations are counted with it."""
    if old is None or len(old) != len(new):
        return True
    return any(_moved(before, after) for before, after in zip(old, new, strict=True))


def _moved(before: Row, after: Row) -> bool:
    if before.tenant != after.tenant or before.backlogged != after.backlogged:
        return True
    if before.allowance != after.allowance:
        return True
    pairs = (
        (before.dispatched, after.dispatched),
        (before.pending, after.pending),
        (before.arrived, after.arrived),
    )
    return any(has_moved(old, new) for old, new in pairs)
