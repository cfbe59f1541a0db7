"""Processes of a worker, for functions that are run in one: each makes one call at a time, and can be killed.

A child is told what to do over a socket. When its worker is gone it ends at once: what it did is tried
again elsewhere, and two must not go on with it for longer than a moment.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from bursar.claims.tracker import Dispatch
from bursar.decoding import DECODE_ERRORS
from bursar.errors import FormatError
from bursar.runtime.current import CurrentTask

HEAD = 4
FRAME_MAX = 16 * 1024 * 1024
END_S = 1.0
IDLE_MAX = max(2, os.cpu_count() or 1)
"""Children that wait for their next call; more of them are ended when theirs is over."""


class Told(msgspec.Struct, frozen=True, array_like=True):
    """From a worker: a call to make, or why the one that is being made is to stop."""

    dispatch: Dispatch | None = None
    stop: str = ""


class Said(msgspec.Struct, frozen=True, array_like=True):
    """From a child: how far it is, or how it ended."""

    what: Literal["note", "ok", "failed"]
    text: bytes = b""


class ChildError(Exception):
    """How a call failed in a child: its traceback there."""


class Children:
    """Started when they are needed."""

    def __init__(self, app: str) -> None:
        self._app = app
        self._idle: list[Child] = []
        self._all: dict[Child, None] = {}

    def prepare(self, dispatch: Dispatch, current: CurrentTask) -> InChild:
        return InChild(self, dispatch, current)

    async def take(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
        child = await start_child(self._app)
        self._all = {each: None for each in (*self._all, child) if each.is_alive}
        return child

    def give_back(self, child: Child) -> None:
        if child.is_alive and len(self._idle) < IDLE_MAX:
            self._idle.append(child)
        else:
            child.kill()

    async def stop(self) -> None:
        """End them all, whatever they do."""
        for child in self._all:
            child.kill()
        for child in self._all:
            await child.wait()
        self._all.clear()
        self._idle.clear()


class Child:
    """One process, and the socket to it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None and not self._reader.at_eof()

    def tell(self, told: Told) -> None:
        self._writer.write(pack(told))

    async def hear(self) -> AsyncIterator[Said]:
        """Until it is gone."""
        while True:
            try:
                size = int.from_bytes(await self._reader.readexactly(HEAD), "big")
                yield msgspec.msgpack.decode(await self._reader.readexactly(size), type=Said)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            except DECODE_ERRORS as error:
                raise FormatError(f"a child of this worker said something else: {error}") from error

    def kill(self) -> None:
        if self._process.returncode is None:
            # Not by the process's own `kill`, which would learn of an end before the loop does.
            try:
                os.kill(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
        self._writer.close()

    async def wait(self) -> str:
        """How it ended, in words. One that closed its socket, and goes on, is ended."""
        try:
            code = await asyncio.wait_for(self._process.wait(), END_S)
        except TimeoutError:
            self.kill()
            code = await self._process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class InChild:
    """A call that is made in a child."""

    def __init__(self, children: Children, dispatch: Dispatch, current: CurrentTask) -> None:
        self._children = children
        self._dispatch = dispatch
        self._current = current
        self._child: Child | None = None
        self._is_forced = False

    async def run(self) -> bytes:
        child = self._child = await self._children.take()
        if self._current.stopping is not None:
            self._children.give_back(child)
            raise ChildError(self._current.stopping)
        child.tell(Told(self._dispatch))
        async for said in child.hear():
            if said.what == "note":
                self._current.note = said.text.decode("utf-8", "replace")
                continue
            self._child = None
            self._children.give_back(child)
            if said.what == "ok":
                return said.text
            raise ChildError(said.text.decode("utf-8", "replace"))
        self._child = None
        how = await child.wait()
        raise ChildError(f"ChildError: its process ended by {how}, without a result")

    def ask(self) -> None:
        if self._child is not None:
            self._child.tell(Told(stop=self._current.stopping or "nobody wants it any more"))

    def force(self) -> bool:
        self._is_forced = True
        if self._child is not None:
            self._child.kill()
        return True


async def start_child(app: str) -> Child:
    """Raises OSError."""
    ours, theirs = socket.socketpair()
    command = (sys.executable, "-m", "bursar.runtime.child", app, str(theirs.fileno()))
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    reader, writer = await asyncio.open_connection(sock=ours, limit=FRAME_MAX)
    return Child(process, reader, writer)


def pack(message: Told | Said) -> bytes:
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(HEAD, "big") + data
