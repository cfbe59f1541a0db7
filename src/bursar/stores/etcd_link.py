"""Calls to an etcd cluster through one of its members at a time, and the lease that is a session.

A member that does not answer, or says that it has no leader, is left for the next one; reads are asked
again there, until their time is up. Whether a change was done whose answer is missing, nobody knows.

Trust. A lease lives for its time to live after the leader took the last heartbeat, and a new leader gives
every lease its whole time anew. The link knows when it sent the heartbeats that were answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc

from bursar.errors import (
    BursarError,
    SessionExpiredError,
    StoreError,
    StoreUnknownError,
    TooLargeError,
)
from bursar.stores import etcd_wire as wire
from bursar.stores.addresses import Address, read_tls_files
from bursar.world import SECOND_NS, Clock

HEARTBEATS_PER_TIMEOUT = 6
RETRY_MIN_S, RETRY_MAX_S = 0.02, 0.3
OPEN_MAX_S = 15.0
CALL_MAX_S = 5.0
MESSAGE_MAX_BYTES = 64 * 1024 * 1024
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
    ("grpc.max_send_message_length", MESSAGE_MAX_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
_Code = grpc.StatusCode
_AGAIN = (_Code.UNAVAILABLE, _Code.DEADLINE_EXCEEDED, _Code.CANCELLED, _Code.UNKNOWN, _Code.INTERNAL)
_STALE_TOKEN = ("invalid auth token", "auth: revision in header is old", "user name is empty")


class Link:
    """See above. `on_switch()` is called when another member is used from now on."""

    def __init__(self, address: Address, clock: Clock) -> None:
        self.address = address
        self.cluster = 0
        self.revision = 0
        self.on_switch: Callable[[], None] = lambda: None
        self._clock = clock
        self._hosts = list(address.hosts)
        random.shuffle(self._hosts)  # so that many clients spread over the members
        self._credentials = _make_credentials(address)
        self._channel: Any = None
        self._methods: dict[str, Any] = {}
        self._token = ""
        self._logging_in = asyncio.Lock()

    async def ask(self, method: str, request: Any, limit_s: float, *, changes: bool = False) -> Any:
        """Raises StoreUnknownError, or the error that the cluster answers. What changes nothing is asked
        again, of other members too, for as long as the time lasts."""
        until_ns = self._clock.now() + int(limit_s * SECOND_NS)
        pause_s = RETRY_MIN_S
        while True:
            left_s = (until_ns - self._clock.now()) / SECOND_NS
            # What is asked again later is not waited for as long.
            share_s = max(left_s if changes else min(left_s, limit_s / 2), RETRY_MIN_S)
            channel = self._open()
            try:
                return await self._call(method, request, share_s)
            except StoreUnknownError:
                if changes or self._clock.now() >= until_ns:
                    raise
            except grpc.aio.AioRpcError as error:
                problem = _explain(error, str(self.address))
                if isinstance(problem, StoreUnknownError):
                    self._leave(channel)
                elif _is_stale(error) and self._clock.now() < until_ns:
                    self._token = ""
                    continue
                if changes or not isinstance(problem, StoreUnknownError) or self._clock.now() >= until_ns:
                    raise problem from error
            await asyncio.sleep(pause_s * (0.5 + random.random() / 2))
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _call(self, method: str, request: Any, limit_s: float) -> Any:
        metadata = await self.log_in(limit_s)
        try:
            answer = await self._methods[method](request, timeout=limit_s, metadata=metadata)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise StoreUnknownError(f"{method}: the member was left for another one") from None
        self.revision = max(self.revision, answer.header.revision)
        self.cluster = answer.header.cluster_id or self.cluster
        return answer

    async def log_in(self, limit_s: float) -> tuple[tuple[str, str], ...]:
        """What goes along with every call of a user."""
        if not self.address.user:
            return ()
        async with self._logging_in:
            if not self._token:
                request = wire.AuthenticateRequest(name=self.address.user, password=self.address.password)
                self._open()
                answer = await self._methods["Auth/Authenticate"](request, timeout=limit_s)
                self._token = answer.token
        return (("token", self._token),)

    async def stream(self, method: str) -> Any:
        """A stream at the member in use; it breaks with it."""
        metadata = await self.log_in(CALL_MAX_S)
        self._open()
        return self._methods[method](metadata=(*metadata, ("hasleader", "true")))

    async def beat(self, lease: int, limit_s: float) -> int:
        """The seconds that the lease lives on; 0 or less: it is over. Raises StoreUnknownError."""
        channel = self._open()
        try:
            async with asyncio.timeout(limit_s):
                stream = await self.stream("Lease/LeaseKeepAlive")
                try:
                    await stream.write(wire.LeaseKeepAliveRequest(ID=lease))
                    answer = await stream.read()
                    await stream.done_writing()
                finally:
                    stream.cancel()
                if answer is grpc.aio.EOF:
                    raise StoreUnknownError("etcd ended the stream of heartbeats")
                left_s: int = answer.TTL
                return left_s
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise StoreUnknownError("the member was left for another one") from None
        except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as error:
            if isinstance(error, grpc.aio.AioRpcError) and _is_stale(error):
                self._token = ""
            else:
                self._leave(channel)
            raise StoreUnknownError(f"no heartbeat was answered: {error}") from error

    def _open(self) -> Any:
        if self._channel is None:
            host, port = self._hosts[0]
            target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            self._channel = (
                grpc.aio.insecure_channel(target, options=_OPTIONS)
                if self._credentials is None
                else grpc.aio.secure_channel(target, self._credentials, options=_OPTIONS)
            )
            self._methods = wire.methods(self._channel)
        return self._channel

    def _leave(self, channel: Any) -> None:
        """Try another member, if that is the one still in use."""
        if channel is not self._channel or channel is None:
            return
        self._hosts.append(self._hosts.pop(0))
        self._channel, self._token = None, ""
        closing = asyncio.get_running_loop().create_task(channel.close(grace=CALL_MAX_S))
        _closings[closing] = None
        closing.add_done_callback(_closings.pop)
        self.on_switch()

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()


def is_cancelled() -> bool:
    """Whether this task is, or only the call that it waits for: gRPC tells both in the same way."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_closings: dict[asyncio.Task[None], None] = {}


def _make_credentials(address: Address) -> Any:
    if not address.tls:
        return None
    ca, key, cert = read_tls_files(address.tls)
    return grpc.ssl_channel_credentials(ca, key, cert)


def _is_stale(error: grpc.aio.AioRpcError) -> bool:
    return any(words in (error.details() or "") for words in _STALE_TOKEN)


def _explain(error: grpc.aio.AioRpcError, where: str) -> BursarError:
    words = error.details() or str(error.code())
    if "lease not found" in words:
        return SessionExpiredError("the session is over: renew() opens a new one")
    if error.code() in _AGAIN:
        return StoreUnknownError(f"etcd at {where}: {words}: it may or may not have happened, read back")
    if "too large" in words or "larger than max" in words:
        return TooLargeError(f"etcd at {where}: {words} (--max-request-bytes)")
    if "database space exceeded" in words:
        return StoreError(f"etcd at {where}: {words}: compact and defragment it, then disarm the alarm")
    return StoreError(f"etcd at {where}: {words}")
