"""The watches of one etcd store, on one stream: two for each path, and one for the session's key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc

from bursar.errors import StoreError, StoreUnknownError
from bursar.stores import etcd_wire as wire
from bursar.stores.etcd_link import CALL_MAX_S, Link, is_cancelled
from bursar.stores.etcd_plan import Keys
from bursar.stores.watches import FlagWatch, Watches

RETRY_S = 0.1
OWN = ""
"""In place of a path: the key of the session."""


class WatchStream:
    """`on_end(session)` is called when the key of the session followed is gone.

    A stream that breaks is opened anew, with all its watches: they fire, for changes may have been missed.
    The same for one watch that etcd cancels, as when it was too slow and the revisions that it had yet to
    tell of were compacted."""

    def __init__(self, link: Link, keys: Keys, on_end: Callable[[int], None]) -> None:
        self._link = link
        self._keys = keys
        self._on_end = on_end
        self._watches = Watches()
        self._session = 0
        self._numbers: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        self._set: dict[int, asyncio.Future[None]] = {}
        self._again: dict[int, None] = {}
        self._last = 0
        self._stream: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def follow(self, session: int) -> None:
        """Tell when this session's key is gone."""
        self._session = session
        await self._add(OWN, CALL_MAX_S)

    async def open(self, path: str, session: int, limit_s: float) -> FlagWatch:
        """Returns when etcd has set it: from then on no change is missed."""
        watch = self._watches.open(path, session)
        forget = watch.on_close
        watch.on_close = lambda: self._close(path, forget)
        try:
            await self._add(path, limit_s)
        except BaseException:
            watch.close()
            raise
        return watch

    async def _add(self, path: str, limit_s: float) -> None:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="etcd.watches")
        number = self._numbers.get(path)
        is_new = number is None
        if number is None:
            number = self._number(path)
        waiting = [self._set[number + each] for each in _parts(path)]
        if is_new:
            await self._create(path)
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*map(asyncio.shield, waiting))
        except TimeoutError:
            raise StoreUnknownError(f"the watch of {path or 'the session'} was not set in time") from None

    def _number(self, path: str) -> int:
        number = self._numbers[path] = self._last + 1
        self._last += 2
        loop = asyncio.get_running_loop()
        for each in _parts(path):
            self._paths[number + each] = path
            self._set[number + each] = loop.create_future()
        return number

    async def _create(self, path: str) -> None:
        """Ask for the watches of a path, whose numbers are known."""
        number = self._numbers[path]
        ranges = [self._keys.both(path), self._keys.children(path)] if path != OWN else [self._own_range()]
        for (key, end), each in zip(ranges, _parts(path), strict=True):
            create = wire.WatchCreateRequest(key=key, range_end=end, watch_id=number + each)
            await self._write(wire.WatchRequest(create_request=create))

    def _own_range(self) -> tuple[bytes, bytes]:
        key = self._keys.session(self._session)
        return key, key + b"\x00"

    async def _write(self, request: Any) -> None:
        """What is lost with the stream is asked anew on the next."""
        stream = self._stream
        if stream is None:
            return
        try:
            async with asyncio.timeout(CALL_MAX_S), self._writing:
                await stream.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError, TimeoutError):
            if is_cancelled():
                raise
            if stream is self._stream:
                self.renew()

    def _close(self, path: str, forget: Callable[[], None]) -> None:
        forget()
        if path not in self._watches.paths():
            self._drop(path)

    def _drop(self, path: str) -> None:
        number = self._numbers.pop(path, None)
        if number is None:
            return
        for each in _parts(path):
            self._paths.pop(number + each, None)
            self._again.pop(number + each, None)
            waiting = self._set.pop(number + each)
            if not waiting.done():
                waiting.set_result(None)  # whoever waits for it asks the store next
            if self._stream is not None:
                cancel = wire.WatchCancelRequest(watch_id=number + each)
                _background(self._write(wire.WatchRequest(cancel_request=cancel)))

    # The stream

    async def _read(self) -> None:
        """A stream of gRPC that was cancelled may leave whoever reads it waiting, so its reader is."""
        while True:
            self._following = asyncio.get_running_loop().create_task(self._follow_stream())
            try:
                await asyncio.wait({self._following})
            finally:
                self._following.cancel()
            await asyncio.sleep(RETRY_S)

    async def _follow_stream(self) -> None:
        """Until it breaks."""
        try:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, StoreError):
                self._stream = await self._link.stream("Watch/Watch")
                self._writing = asyncio.Lock()
                for path in list(self._numbers):
                    if path in self._numbers:
                        self._renumber(path)
                        await self._create(path)
                while (answer := await self._stream.read()) is not grpc.aio.EOF:
                    await self._hear(answer)
        finally:
            stream, self._stream = self._stream, None
            if stream is not None:
                stream.cancel()

    def _renumber(self, path: str) -> None:
        """A watch that waits to be set goes on waiting."""
        old = self._numbers[path]
        waiting = [self._set.pop(old + each) for each in _parts(path)]
        for each in _parts(path):
            self._paths.pop(old + each, None)
            self._again.pop(old + each, None)
        number = self._number(path)
        self._again.update(dict.fromkeys(number + each for each in _parts(path)))
        for each, future in zip(_parts(path), waiting, strict=True):
            if not future.done():
                self._set[number + each] = future

    async def _hear(self, answer: Any) -> None:
        path = self._paths.get(answer.watch_id)
        if path is None:
            return
        if answer.created and not answer.canceled:
            future = self._set[answer.watch_id]
            if not future.done():
                future.set_result(None)
            if answer.watch_id in self._again:
                self._fire(path)  # something may have happened before it was set
        elif answer.canceled:
            self._renumber(path)
            await self._create(path)
            return
        if path == OWN:
            if any(event.type == wire.DELETE for event in answer.events):
                self._on_end(self._session)
        elif len(answer.events):
            self._fire(path)

    def _fire(self, path: str) -> None:
        self._watches.fire([path])

    def expire(self, session: int) -> None:
        self._watches.expire(session)
        for path in [path for path in self._numbers if path not in self._watches.paths()]:
            self._drop(path)

    def renew(self) -> None:
        """Another member is used from now on, or should be."""
        if self._following is not None:
            self._following.cancel()

    async def close(self) -> None:
        stream = self._stream
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if stream is not None:
            with suppress(TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(RETRY_S):
                    await stream.code()


def _parts(path: str) -> range:
    return range(1) if path == OWN else range(2)


_tasks: dict[asyncio.Task[None], None] = {}


def _background(work: Any) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _tasks[task] = None
    task.add_done_callback(_tasks.pop)
