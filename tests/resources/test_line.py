"""A client's line: what it has been told to settle is told until somebody has decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bursar.errors import NetworkError, NoAnswerError, RemoteError, UnreachableError
from bursar.resource import wire
from bursar.resource.line import Line
from bursar.world import SECOND_NS


class Daemon:
    """Answers with the errors that it was given, then as it should."""

    def __init__(self, *errors: NetworkError | wire.Misused) -> None:
        self.errors = list(errors)
        self.heard: list[Any] = []

    async def call(self, peer: str, topic: str, message: Any, replies: Any, timeout_ns: int) -> Any:
        self.heard.append(message)
        answer = self.errors.pop(0) if self.errors else wire.Done()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def settle_over(daemon: Daemon) -> list[Any]:
    """What the daemon heard until the client was done with it."""
    world: Any = SimpleNamespace(
        incarnation=1,
        network=daemon,
        clock=SimpleNamespace(now=lambda: 0, sleep=lambda ns: asyncio.sleep(0)),
        spawn=lambda work, name: asyncio.ensure_future(work),
        trace=lambda event, **fields: None,
    )
    line = Line(world, ["a", "b"], None, learn=lambda described: None, recall=lambda lot: None)
    line.tell_later(wire.Settle("llm", "a/1", 3, 0))
    async with asyncio.timeout(10):
        await line.flush()
    return daemon.heard


@pytest.mark.parametrize("error", [NoAnswerError, UnreachableError, RemoteError])
async def test_a_settlement_is_told_until_a_daemon_has_decided(error: type[NetworkError]) -> None:
    """Also to one that went down in the middle, whose last word was that it failed."""
    heard = await settle_over(Daemon(*[error("gone") for _ in range(5)]))
    assert len(heard) == 6 and set(heard) == {wire.Settle("llm", "a/1", 3, 0)}


async def test_a_settlement_that_is_refused_is_not_told_again() -> None:
    assert len(await settle_over(Daemon(wire.Misused("it expired")))) == 1


class Two:
    """Two daemons, of which those in `down` cannot be reached."""

    def __init__(self) -> None:
        self.now = 0
        self.down = {"a"}
        self.alive: set[str] = set()

    async def sleep(self, duration_ns: int) -> None:
        self.now += duration_ns
        await asyncio.sleep(0)

    async def call(self, peer: str, topic: str, message: Any, replies: Any, timeout_ns: int) -> Any:
        if peer in self.down:
            raise UnreachableError(peer)
        return wire.Opened({}) if isinstance(message, wire.Open) else wire.Done()

    def send(self, peer: str, topic: str, message: Any) -> None:
        self.alive.add(peer)

    def serve(self, *arguments: Any, **options: Any) -> None: ...

    async def pass_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)


async def test_a_client_goes_back_to_its_first_daemon_and_what_it_holds_elsewhere_lives_on() -> None:
    two = Two()
    tasks: list[asyncio.Task[Any]] = []
    world: Any = SimpleNamespace(
        incarnation=1,
        network=two,
        clock=SimpleNamespace(now=lambda: two.now, sleep=two.sleep),
        spawn=lambda work, name: tasks.append(asyncio.ensure_future(work)),
        trace=lambda event, **fields: None,
    )
    line = Line(world, ["a", "b"], None, learn=lambda described: None, recall=lambda lot: None)
    await line.open(SECOND_NS)
    assert line.peer == "b"
    line.hold()
    await two.sleep(10 * SECOND_NS)
    assert line.peer == "b" and not line.away, "the silence of a daemon that nobody needs is no news"
    two.down.clear()
    await two.pass_until(lambda: line.peer == "a")
    await two.pass_until(lambda: "b" in two.alive)
    line.let_go()
    await two.pass_until(lambda: not line._left)
    line.close()
    await asyncio.gather(*tasks)


async def test_a_first_daemon_that_is_lost_again_at_once_is_tried_ever_less_often() -> None:
    two = Two()
    world: Any = SimpleNamespace(incarnation=1, network=two, clock=SimpleNamespace(now=lambda: two.now))
    line = Line(world, ["a", "b"], None, learn=lambda described: None, recall=lambda lot: None)
    pauses = []
    for _ in range(7):
        await line.call(wire.Alive(), SECOND_NS)
        assert line.peer == "b"
        pauses.append(line._home_pause_ns // SECOND_NS)
        line._at, line._home_since = 0, two.now
    assert pauses == [2, 4, 8, 16, 32, 32, 32]
    two.now += 60 * SECOND_NS
    await line.call(wire.Alive(), SECOND_NS)
    assert line._home_pause_ns == SECOND_NS
