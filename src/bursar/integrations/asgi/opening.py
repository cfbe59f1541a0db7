"""The resource behind the middleware, and how it comes to be there.

At the start of a server the first try is waited for (a daemon that does not answer is given up
after five seconds), and then the moment from which on requests are decided; later tries go on
behind, while requests are answered without it. Once connected, the client of a daemon finds its way
back by itself.
"""

from __future__ import annotations

import asyncio
import random
from os import PathLike
from weakref import WeakKeyDictionary

from bursar.errors import NetworkError, StoreError, UsageError
from bursar.policy import Policy
from bursar.resource.door import Resource
from bursar.runtime import logs
from bursar.runtime.client import Bursar

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 5.0
READY_MAX_S = 5.0
READY_STEP_S = 0.01
AWAY = (NetworkError, StoreError)
"""What passes by itself. Any other error is a mistake that somebody has to mend."""

_connecting: WeakKeyDictionary[Bursar, asyncio.Lock] = WeakKeyDictionary()
"""Several middlewares may share one `Bursar`, and it is connected once."""

Target = str | PathLike[str] | Policy | Bursar


class Opening:
    """Connects until it is connected. `resource` is None until then, `error` says why."""

    def __init__(self, target: Target, name: str) -> None:
        self._bursar = target if isinstance(target, Bursar) else Bursar(target)
        self._name = name
        self._connected_here = False
        self._tried = asyncio.Event()
        self._trying: asyncio.Task[None] | None = None
        self.resource: Resource | None = None
        self.error: Exception | None = None
        self.pause_s = PAUSE_MIN_S

    async def try_first(self) -> None:
        """Begin, and wait for the first try."""
        if self._trying is None:
            self._tried, self.pause_s = asyncio.Event(), PAUSE_MIN_S
            self._trying = asyncio.create_task(self._try_on(), name=f"bursar: open {self._name}")
        await self._tried.wait()

    async def start(self, required: bool) -> None:
        """Wait until requests would be decided, for a while. Raises what stands in the way, if it is a
        mistake, or if the server must not start without."""
        await self.try_first()
        if self.error is not None and (required or not isinstance(self.error, AWAY)):
            error = self.error
            await self.close()
            raise error
        if self.resource is not None:
            await self._await_ready(self.resource)

    async def _await_ready(self, resource: Resource) -> None:
        """A rate in this process has no tokens before its first period."""
        for _ in range(round(READY_MAX_S / READY_STEP_S)):
            if resource.decider.is_ready():
                return
            await asyncio.sleep(READY_STEP_S)
        logs.warning("asgi.not_ready", resource=self._name, after_s=READY_MAX_S)

    async def _try_on(self) -> None:
        while not await self._try_once():
            await asyncio.sleep(self.pause_s * random.uniform(0.5, 1.0))
            self.pause_s = min(2 * self.pause_s, PAUSE_MAX_S)

    async def _try_once(self) -> bool:
        try:
            await self._connect()
            self.resource = self._bursar.resource(self._name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and tried again
            if str(error) != str(self.error):
                logs.warning("asgi.not_open", resource=self._name, why=str(error))
            self.error = error
        else:
            if self.error is not None:
                logs.info("asgi.open", resource=self._name)
            self.error = None
        finally:
            self._tried.set()
        return self.resource is not None

    async def _connect(self) -> None:
        async with _connecting.setdefault(self._bursar, asyncio.Lock()):
            if not is_connected(self._bursar):
                await self._bursar.connect()
                self._connected_here = True

    async def close(self) -> None:
        """What was connected here is closed; what was connected before goes on. It can be opened again."""
        trying, self._trying, self.resource = self._trying, None, None
        if trying is not None:
            trying.cancel()
            await asyncio.gather(trying, return_exceptions=True)
        if self._connected_here:
            self._connected_here = False
            await self._bursar.close()


def is_connected(bursar: Bursar) -> bool:
    try:
        return bursar.resources is not None
    except UsageError:
        return False
