"""Resources of a daemon elsewhere: asked over the wire, or the policy's fallback when it is away.

No caller waits longer than it said, plus `ANSWER_NS`. When the daemon is known to be away callers
do not wait at all, beyond a short time for the connection to come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from bursar.errors import (
    NetworkError,
    NoAnswerError,
    Refused,
    RemoteError,
    Unknown,
    UnreachableError,
    UsageError,
)
from bursar.resource import WAIT_MAX_S, Acquisition, Explanation, Grant, Resource, check_name
from bursar.runtime import logs
from bursar.runtime.fallback import Fallback
from bursar.runtime.messages import (
    FAILED,
    TOPIC,
    Counted,
    Described,
    Explain,
    Explained,
    GiveBack,
    Granted,
    Misused,
    NotOpened,
    Open,
    Opened,
    Refusal,
    Replies,
    Returned,
    Statistics,
    Take,
    TakeReplies,
    Uncertain,
)
from bursar.runtime.network import SocketNetwork
from bursar.runtime.prefetch import Prefetch
from bursar.runtime.routes import Address
from bursar.world import MILLISECOND_NS, SECOND_NS, Message

PEER = "daemon"
ANSWER_NS = 250 * MILLISECOND_NS
RECONNECT_NS = 250 * MILLISECOND_NS
RETRY_NS = 20 * MILLISECOND_NS
CLOSE_TIMEOUT_S = 1.0


class Connection:
    """One client's connection to a daemon, shared by all its resources."""

    def __init__(self, network: SocketNetwork, address: Address, token: str | None) -> None:
        self.network = network
        self.clock = network.clock
        self.address = address
        self.resources: dict[str, RemoteResource] = {}
        self._token = token
        self._number = 0
        self._returns: dict[int, int | None] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        network.add_route(PEER, address, any_name=True)
        network.observe(self._observe)

    def _observe(self, peer: str, connected: bool) -> None:
        """Back at a daemon: it may have another policy by now."""
        if connected and self.resources:
            self.spawn(self._learn())

    async def _learn(self) -> None:
        try:
            await self.open(2 * SECOND_NS)
        except (NetworkError, UsageError) as error:
            logs.warning("client.not_opened", address=str(self.address), why=str(error))

    async def open(self, timeout_ns: int) -> None:
        """Learn what the daemon has. Raises UsageError for a wrong token, NetworkError."""
        reply = await self.ask(Open(self._token), timeout_ns)
        assert isinstance(reply, Opened), "asked for"
        for name, described in reply.resources.items():
            known = self.resources.get(name)
            if known is None:
                self.resources[name] = RemoteResource(name, described, self)
            else:
                known.describe(described)

    async def ask(self, message: Message, timeout_ns: int) -> Message:
        reply: Message = await self.network.call(PEER, TOPIC, message, Replies, timeout_ns)
        if isinstance(reply, Misused):
            raise UsageError(reply.why)
        return reply

    def next_number(self) -> int:
        self._number += 1
        return self._number

    async def call_take(self, take: Take, timeout_ns: int) -> Message:
        # What was given back before goes first, on the same connection: the daemon sees it first.
        if self._returns:
            self.flush_returns()
            await asyncio.sleep(0)
        reply: Message = await self.network.call(PEER, TOPIC, take, TakeReplies, timeout_ns)
        if isinstance(reply, NotOpened):
            await self.open(timeout_ns)
            reply = await self.network.call(PEER, TOPIC, take, TakeReplies, timeout_ns)
        return reply

    def give_back(self, number: int, used: int | None) -> None:
        """Give back soon, together with others; kept until the daemon has said that it knows."""
        self._returns[number] = used
        asyncio.get_running_loop().call_soon(self.flush_returns)

    def flush_returns(self) -> None:
        if self._returns:
            batch, self._returns = self._returns, {}
            task = self.spawn(self._return_all(batch))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)

    async def _return_all(self, batch: Mapping[int, int | None]) -> None:
        while not await self._return_once(batch):
            await self.clock.sleep(RECONNECT_NS)

    async def _return_once(self, batch: Mapping[int, int | None]) -> bool:
        try:
            reply = await self.network.call(PEER, TOPIC, GiveBack(tuple(batch.items())), Replies, SECOND_NS)
        except (UnreachableError, NoAnswerError):
            return False
        except RemoteError as error:
            # The daemon failed at it; it still holds them, and gives them to the kind when we leave.
            logs.warning("client.return_failed", why=str(error), grants=len(batch))
            return True
        return isinstance(reply, Returned | Misused)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Give back what is to be given back, for at most a second, then leave."""
        for resource in self.resources.values():
            resource.prefetch.stop()
        self.flush_returns()
        if self._returning:
            await asyncio.wait(self._returning, timeout=CLOSE_TIMEOUT_S)
        for task in list(self._tasks):
            task.cancel()
        await self.network.close()


class RemoteAcquisition(Acquisition):
    """An acquisition of named things."""

    __slots__ = ("_names",)

    def __init__(
        self, resource: RemoteResource, names: tuple[str, ...], tenant: str, wait_ns: int, key: str | None
    ) -> None:
        super().__init__(resource, tenant, len(names), wait_ns, key)
        self._names = names

    def __await__(self) -> Generator[Any, None, Grant]:
        resource = self._resource
        assert isinstance(resource, RemoteResource), "made by one"
        return resource.take_names(
            self._tenant, self._amount, self._wait_ns, self._key, self._names
        ).__await__()


class RemoteResource(Resource):
    """Implements `Resource` over the wire."""

    def __init__(self, name: str, described: Described, connection: Connection) -> None:
        super().__init__(name)
        self._connection = connection
        self.fallback = Fallback(described.without_bursar, connection.clock)
        self.prefetch = Prefetch(self, connection)
        self.describe(described)

    def describe(self, described: Described) -> None:
        self.kind = described.kind
        self.fallback.policy = described.without_bursar
        self.prefetch.configure(described.prefetch_tokens, described.prefetch_ns)

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        """From tokens that were fetched ahead, where the kind allows it; otherwise always None."""
        return self.prefetch.take(tenant, amount)

    def claim(
        self, names: Sequence[str], tenant: str, *, wait: float = 0.0, key: str | None = None
    ) -> Acquisition:
        check_name("tenant", tenant)
        for name in names:
            check_name("name", name)
        if not names or not 0 <= wait <= WAIT_MAX_S:
            raise UsageError(f"claim takes at least one name and a wait from 0 to {WAIT_MAX_S:.0f} seconds")
        return RemoteAcquisition(self, tuple(names), tenant, int(wait * SECOND_NS), key)

    async def _take(self, tenant: str, amount: int, wait_ns: int, key: str | None) -> Grant:
        return await self.take_names(tenant, amount, wait_ns, key, ())

    async def take_names(
        self, tenant: str, amount: int, wait_ns: int, key: str | None, names: tuple[str, ...]
    ) -> Grant:
        number = self._connection.next_number()
        began = self._connection.clock.now()
        take = Take(number, self.name, tenant, amount, wait_ns, key, names)
        try:
            reply = await self._ask(take, began)
        except NetworkError as error:
            # Granted or not, nobody here will use it.
            self._connection.give_back(number, 0)
            fallback = self.fallback.decide(tenant, amount, f"bursar cannot be reached: {error}")
            return Grant(self, tenant, amount, fallback=fallback)
        except asyncio.CancelledError:
            self._connection.give_back(number, 0)
            raise
        return self._read_reply(take, reply)

    async def _ask(self, take: Take, began: int) -> Message:
        """Ask, and ask again on a new connection while there is time: the number makes it once."""
        clock, wait_ns = self._connection.clock, take.wait_ns
        while True:
            passed = clock.now() - began
            left_ns = max(0, wait_ns - passed)
            request = take if left_ns == wait_ns else _with_wait(take, left_ns)
            try:
                return await self._connection.call_take(request, left_ns + ANSWER_NS)
            except UnreachableError:
                if clock.now() - began > min(wait_ns, RECONNECT_NS):
                    raise
            except NoAnswerError:
                if clock.now() - began > wait_ns:
                    raise
            await clock.sleep(RETRY_NS)

    def _read_reply(self, take: Take, reply: Message) -> Grant:
        match reply:
            case Granted():
                return Grant(
                    self,
                    take.tenant,
                    reply.amount,
                    fence=reply.fence,
                    fallback=reply.fallback,
                    data=take.number,
                )
            case Refusal():
                raise Refused(
                    reply.why, limit=reply.limit, remaining=reply.remaining, retry_after=reply.retry_after
                )
            case Uncertain():
                raise Unknown(reply.why, fallback=reply.fallback)
            case Misused():
                raise UsageError(reply.why)
        raise Unknown("the daemon does not take this client's token any more", fallback="refuse")

    async def _give_back(self, grant: Grant) -> None:
        if isinstance(grant.data, int):
            self._connection.give_back(grant.data, grant.used)

    def used_on_error(self, grant: Grant) -> int | None:
        """The kind knows, and the kind is at the daemon: it is told that the work failed."""
        return FAILED

    def explain(self, tenant: str) -> Explanation:
        raise UsageError("this resource is at a daemon: use `await b.explain(resource, tenant)`")

    def statistics(self) -> Mapping[str, Any]:
        raise UsageError("this resource is at a daemon: use `await b.statistics(resource)`")

    async def fetch_explanation(self, tenant: str) -> Explanation:
        check_name("tenant", tenant)
        reply = await self._connection.ask(Explain(self.name, tenant), 2 * SECOND_NS)
        assert isinstance(reply, Explained), "asked for"
        return reply.explanation

    async def fetch_statistics(self) -> Mapping[str, Any]:
        reply = await self._connection.ask(Statistics(self.name), 2 * SECOND_NS)
        assert isinstance(reply, Counted), "asked for"
        return reply.statistics


def _with_wait(take: Take, wait_ns: int) -> Take:
    return Take(take.number, take.resource, take.tenant, take.amount, wait_ns, take.key, take.names)
