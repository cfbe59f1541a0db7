"""Asking: an answer comes within what the caller waits and a quarter of a second, whoever is slow."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from bursar.errors import Unknown
from bursar.resource.asking import Asking
from bursar.resource.decider import Decider
from bursar.resource.tallies import TallyCounter
from bursar.resource.tickets import Ticket
from bursar.world import MILLISECOND_NS

QUARTER_NS = 250 * MILLISECOND_NS


class Clockwork:
    """A clock and its deadlines: time passes from one to the next."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.due: list[tuple[int, Any, Any, SimpleNamespace]] = []

    def add(self, at: int, act: Any, subject: Any) -> SimpleNamespace:
        deadline = SimpleNamespace(done=False)
        self.due.append((at, act, subject, deadline))
        return deadline

    def pass_on(self) -> None:
        at, act, subject, deadline = self.due.pop(0)
        if not deadline.done:
            self.now_ns = max(self.now_ns, at)
            act(subject)


def make_silent(patience_ns: int) -> Any:
    """A kind whose answer is always on its way."""
    return SimpleNamespace(
        name="llm",
        kind="quota",
        answer_ns=Decider.answer_ns,
        decide=lambda ticket: None,
        withdraw=lambda ticket: None,
        patience_ns=lambda ticket: patience_ns,
    )


@pytest.mark.parametrize("wait_ms", [0, 50, 1000])
@pytest.mark.parametrize("patience_ms", [0, 200, 400, 2000])
async def test_there_is_time_left_for_the_answer_to_arrive(wait_ms: int, patience_ms: int) -> None:
    clock = Clockwork()
    world: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: clock.now_ns))
    decider, deadlines = make_silent(patience_ms * MILLISECOND_NS), clock
    tallies: defaultdict[str, TallyCounter] = defaultdict(TallyCounter)
    asking = Asking(world, decider, deadlines, tallies, lambda *_: None, lambda *_: None)  # type: ignore[arg-type]
    asked = asyncio.ensure_future(asking.decide(Ticket("acme", 1, wait_ns=wait_ms * MILLISECOND_NS)))
    await asyncio.sleep(0)
    while clock.due:
        clock.pass_on()
    with pytest.raises(Unknown, match="did not decide in time"):
        await asked
    assert clock.now_ns < wait_ms * MILLISECOND_NS + QUARTER_NS


@pytest.mark.parametrize(("by_ms", "wait_ms"), [(100, 0), (100, 50), (300, 1000), (0, 0)])
async def test_who_has_less_time_is_answered_sooner(by_ms: int, wait_ms: int) -> None:
    clock = Clockwork()
    world: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: clock.now_ns))
    tallies: defaultdict[str, TallyCounter] = defaultdict(TallyCounter)
    decider = make_silent(2000 * MILLISECOND_NS)
    asking = Asking(world, decider, clock, tallies, lambda *_: None, lambda *_: None)  # type: ignore[arg-type]
    ticket = Ticket("acme", 1, wait_ns=wait_ms * MILLISECOND_NS)
    ticket.by = by_ms * MILLISECOND_NS
    asked = asyncio.ensure_future(asking.decide(ticket))
    await asyncio.sleep(0)
    while clock.due:
        clock.pass_on()
    with pytest.raises(Unknown, match="did not decide in time"):
        await asked
    assert clock.now_ns == by_ms * MILLISECOND_NS
