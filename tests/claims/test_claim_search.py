"""Every order of what two instances ask of the store, in small worlds."""

from __future__ import annotations

import pytest

from bursar.claims.doing import Doing
from bursar.claims.instance_book import InstanceBook
from bursar.claims.model import Task
from bursar.claims.tracker import Report
from bursar.sim.orders import OrderSearch, Walk
from bursar.sim.scenarios.claim.small import LeavingClaims, SmallClaims


@pytest.mark.parametrize("world", [SmallClaims, LeavingClaims])
def test_nobody_waits_while_all_that_it_needs_is_free(world: type[SmallClaims]) -> None:
    found = OrderSearch(world, departures=1).run()
    assert found.why is None and found.states > 50, str(found)


def trusts_what_it_saw(self: InstanceBook, id: str) -> bool:
    """A task that waits here holds what it was once seen to hold."""
    return id in self.mine


async def gives_up(self: Doing, task: Task, report: Report) -> None:
    """An end is told to the store for some time, and no longer."""
    await self._is_end_decided(task, report)


@pytest.mark.parametrize(
    ("world", "part", "method", "mistake", "says"),
    [
        (LeavingClaims, InstanceBook, "holds_here", trusts_what_it_saw, "t1 waits for ever"),
        (SmallClaims, Doing, "_record_end", gives_up, "has ended, and the store does not"),
    ],
)
def test_what_once_went_wrong_is_found(
    world: type[SmallClaims],
    part: type,
    method: str,
    mistake: object,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(part, method, mistake)
    found = OrderSearch(world, departures=1).run()
    assert found.why is not None and says in found.why, str(found)


def take_until(walk: Walk, *parts: str) -> None:
    """Plain moves, up to and with the first that says all of this."""
    while not all(part in walk.labels[-1] for part in parts):
        walk.take(0)


def choose(walk: Walk, label: str) -> None:
    walk.take([each for each, _ in walk.moves()].index(label))


def lose_the_end_of_an_attempt() -> None:
    """The session of i1 ends before the store has heard that t3 ended; i2 has it done once more; i1 comes
    back with the end of the first attempt. The search of two departures finds it after a minute."""
    walk = Walk(SmallClaims())
    try:
        walk.take(0)
        take_until(walk, "the work of t3 ends")
        walk.take(0)
        choose(walk, "the session of i1 is ended")
        take_until(walk, "i2: ", "delete /claims/things/names/0/b/S/t3")
        walk.take(0)
        walk.take(0)
        choose(walk, "the store is away")
        while walk.moves():
            walk.take(0)
        walk.finish()
    finally:
        walk.close()


def test_the_end_of_an_attempt_does_not_end_the_next() -> None:
    lose_the_end_of_an_attempt()
