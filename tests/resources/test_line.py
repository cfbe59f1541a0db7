"""A client's line: what it has been told to settle is told until somebody has decided."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bursar.errors import NetworkError, NoAnswerError, RemoteError, UnreachableError
from bursar.resource import wire
from bursar.resource.line import Line


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
    line.settle_later(wire.Settle("llm", "a/1", 3, 0))
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
