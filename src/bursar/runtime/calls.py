"""The calls under way on one connection, and their deadlines."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import msgspec

from bursar.decoding import DECODE_ERRORS
from bursar.errors import NetworkError, NoAnswerError, RemoteError
from bursar.runtime import frames
from bursar.world import SECOND_NS

ALARM_MIN_S = 0.01

Waiting = tuple[asyncio.Future[Any], msgspec.msgpack.Decoder[Any], float]


class Calls:
    """Each call has a number, a future for its answer, and a deadline.

    One timer serves them all, set for the first deadline: most calls are answered long before
    theirs, and then cost no timer at all."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._number = 0
        self._waiting: dict[int, Waiting] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at_s = math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    def next_number(self) -> int:
        self._number = (self._number + 1) % frames.NUMBERS
        return self._number

    def begin(self, number: int, reply: Any, timeout_ns: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        deadline_s = self._loop.time() + timeout_ns / SECOND_NS
        decoder = frames.decoders.get(reply) or frames.decoder_of(reply)
        self._waiting[number] = (future, decoder, deadline_s)
        if deadline_s < self._alarm_at_s:
            self._set_alarm(deadline_s)
        return future

    def settle(self, number: int, body: bytes, peer: str) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is None or waiting[0].done():
            return  # too late: the caller has given up
        future, decoder, _ = waiting
        try:
            future.set_result(decoder.decode(body))
        except DECODE_ERRORS as error:
            future.set_exception(RemoteError(f"{peer} answered with something else: {error}"))

    def fail(self, number: int, error: NetworkError) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_exception(error)

    def lose(self, why: str) -> None:
        """The connection is gone: what was sent may have happened."""
        if self._alarm is not None:
            self._alarm.cancel()
        for number in list(self._waiting):
            self.fail(number, NoAnswerError(why))

    def _set_alarm(self, at_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at_s = at_s
        self._alarm = self._loop.call_at(at_s, self._expire)

    def _expire(self) -> None:
        self._alarm, self._alarm_at_s = None, math.inf
        now_s = self._loop.time()
        first_s = math.inf
        for number, (future, _, deadline_s) in list(self._waiting.items()):
            if future.done():
                del self._waiting[number]  # the caller was cancelled
            elif deadline_s > now_s:
                first_s = min(first_s, deadline_s)
            else:
                self.fail(number, NoAnswerError("no answer came in time; it may have happened"))
        if first_s < math.inf:
            # Many calls with deadlines close to each other share one pass over them.
            self._set_alarm(max(first_s, now_s + ALARM_MIN_S))
