"""Inputs that are made of several parts, and the loop that asynchronous parsers run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def join(parts: Iterable[bytes]) -> bytes:
    """Each behind two bytes of length."""
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def split(data: bytes) -> list[bytes]:
    """What `join` put together; of anything else as much as there is."""
    parts, at = [], 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        parts.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return parts


def cut(data: bytes, size: int) -> Iterator[bytes]:
    """As it may come from a socket."""
    return (data[at : at + size] for at in range(0, len(data), max(1, size)))


def pick(data: bytes, choices: list[T]) -> tuple[T, bytes]:
    """By the first byte, one of the choices; and the rest."""
    return choices[data[0] % len(choices) if data else 0], data[1:]


def mark(number: int, data: bytes) -> bytes:
    """As `pick` reads it."""
    return bytes((number,)) + data


def frame(kind: int, number: int, topic: bytes, body: bytes) -> bytes:
    """Of a connection, whatever is in it."""
    head = kind.to_bytes(1, "big") + number.to_bytes(4, "big") + len(topic).to_bytes(1, "big")
    return (len(head + topic + body)).to_bytes(4, "big") + head + topic + body


def same(one: Callable[[], T], other: Callable[[], T], refusals: tuple[type[Exception], ...]) -> None:
    """Both do the same, or are both refused."""
    assert _outcome(one, refusals) == _outcome(other, refusals), "the same bytes were read in two ways"


def _outcome(read: Callable[[], T], refusals: tuple[type[Exception], ...]) -> T | None:
    try:
        return read()
    except refusals:
        return None


@cache
def find_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def run(work: Coroutine[Any, Any, T]) -> T:
    """On a loop that all targets of this process share."""
    return find_loop().run_until_complete(work)


async def call(act: Callable[..., Any], *arguments: Any) -> None:
    """Outside of any task, as the loop calls a protocol."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def do() -> None:
        try:
            act(*arguments)
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            done.set_exception(error)
        else:
            done.set_result(None)

    loop.call_soon(do)
    await done


class Sink:
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    abort = close

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...
