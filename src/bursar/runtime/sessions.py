"""The daemon's side of its clients: what each has been granted and has not given back.

A session begins with a client's first word and ends some time after its last connection is gone.
What it still holds then is handed to the kind: released with everything counted as used, because
nobody knows what the client did with it, unless the kind says otherwise (`lost`).
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.values import ResourcePolicy, suggest
from bursar.resource import Acquisition, Grant, Resource, check_name
from bursar.runtime import logs
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
    Requests,
    Returned,
    Statistics,
    Take,
    Uncertain,
)
from bursar.runtime.world import LiveWorld
from bursar.world import SECOND_NS, Message

GRACE_NS = 5 * SECOND_NS
GRANTS_MAX = 100_000
RETURNED_EARLY_MAX = 1_000


class Session:
    """One client. Grants are held by the client's numbers; `taking` are those under way."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.opened = False
        self.grants: dict[int, tuple[Resource, Grant]] = {}
        self.taking: dict[int, tuple[asyncio.Task[Any] | None, asyncio.Future[Message]]] = {}
        self.returned_early: dict[int, None] = {}

    def note_returned(self, number: int) -> None:
        """Remember a number that came back before it was granted, so that it never is."""
        self.returned_early[number] = None
        if len(self.returned_early) > RETURNED_EARLY_MAX:
            del self.returned_early[next(iter(self.returned_early))]


class Desk:
    """Answers clients from the resources of one node."""

    def __init__(
        self,
        world: LiveWorld,
        resources: Mapping[str, Resource],
        policies: Mapping[str, ResourcePolicy],
        *,
        token: str | None = None,
        grace_ns: int = GRACE_NS,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._resources = resources
        self._policies = policies
        self._token = token
        self._grace_ns = grace_ns
        self._sessions: dict[str, Session] = {}
        self._connected: set[str] = set()

    def start(self) -> None:
        self._world.sockets.observe(self._observe)
        self._world.network.serve(TOPIC, Requests, self._answer)

    @property
    def held(self) -> int:
        """How many grants clients hold."""
        return sum(len(session.grants) for session in self._sessions.values())

    async def _answer(self, client: str, message: Any) -> Message:
        session = self._sessions.get(client)
        if session is None:
            session = self._sessions[client] = Session(client)
        try:
            match message:
                case Take():
                    return await self._take(session, message)
                case GiveBack():
                    return await self._give_back(session, message)
                case Open():
                    return self._open(session, message)
                case Explain():
                    check_name("tenant", message.tenant)
                    return Explained(self._find(message.resource).explain(message.tenant))
                case Statistics():
                    return Counted(self._find(message.resource).statistics())
        except UsageError as error:
            return Misused(str(error))
        raise AssertionError("the network passes nothing else")

    def _find(self, name: str) -> Resource:
        resource = self._resources.get(name)
        if resource is None:
            raise UsageError(
                f"there is no resource {name[:100]!r} here{suggest(name[:100], self._resources)}"
            )
        return resource

    def _open(self, session: Session, message: Open) -> Message:
        if self._token is not None and not hmac.compare_digest(
            self._token.encode(), (message.token or "").encode()
        ):
            self.counts["token_refused"] += 1
            raise UsageError("this daemon wants a token: pass token=..., or set BURSAR_TOKEN")
        session.opened = True
        return Opened({name: self._describe(name) for name in self._resources})

    def _describe(self, name: str) -> Described:
        resource, policy = self._resources[name], self._policies[name]
        return Described(
            kind=resource.kind,
            without_bursar=policy.without_bursar,
            prefetch_tokens=getattr(resource, "prefetch_tokens", 0),
            prefetch_ns=getattr(resource, "prefetch_ns", 0),
        )

    async def _take(self, session: Session, take: Take) -> Message:
        if self._token is not None and not session.opened:
            return NotOpened()
        held = session.grants.get(take.number)
        if held is not None:
            return _granted(held[1])
        if take.number in session.returned_early:
            return Misused("this acquisition was given up by the client")
        under_way = session.taking.get(take.number)
        if under_way is not None:
            return await asyncio.shield(under_way[1])
        if len(session.grants) + len(session.taking) >= GRANTS_MAX:
            return Misused(f"this client holds {GRANTS_MAX} grants; release some")
        return await self._take_once(session, take)

    async def _take_once(self, session: Session, take: Take) -> Message:
        outcome: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        session.taking[take.number] = (asyncio.current_task(), outcome)
        answer: Message = Uncertain("the daemon gave up", "refuse")
        try:
            answer = await self._decide(session, take)
        except asyncio.CancelledError:
            if take.number not in session.returned_early:
                raise
            answer = Misused("this acquisition was given up by the client")
        finally:
            del session.taking[take.number]
            outcome.set_result(answer)
        return answer

    async def _decide(self, session: Session, take: Take) -> Message:
        resource = self._find(take.resource)
        try:
            grant = await _acquisition(resource, take)
        except Refused as refused:
            self.counts["refused"] += 1
            return Refusal(refused.why, refused.limit, refused.remaining, refused.retry_after)
        except Unknown as unknown:
            self.counts["unknown"] += 1
            return Uncertain(unknown.why, unknown.fallback)
        self.counts["granted"] += 1
        session.grants[take.number] = (resource, grant)
        if take.number in session.returned_early:
            await self._return(session, take.number, 0)
        elif self._sessions.get(session.client) is not session:
            await self._lose(session, take.number)
        return _granted(grant)

    async def _give_back(self, session: Session, message: GiveBack) -> Message:
        problems: list[UsageError] = []
        for number, used in message.grants:
            if number in session.grants:
                try:
                    await self._return(session, number, used)
                except UsageError as error:
                    problems.append(error)  # the others of the batch come back all the same
            else:
                session.note_returned(number)
                task, _ = session.taking.get(number, (None, None))
                if task is not None:
                    task.cancel()
        if problems:
            raise problems[0]
        return Returned(len(message.grants))

    async def _return(self, session: Session, number: int, used: int | None) -> None:
        resource, grant = session.grants.pop(number)
        if used == FAILED:
            used = resource.used_on_error(grant)
        try:
            if used is not None:
                grant.settle(used)
        finally:
            await grant.release()
            self.counts["returned"] += 1

    # Clients that go away.

    def _observe(self, client: str, connected: bool) -> None:
        if connected:
            self._connected.add(client)
            return
        self._connected.discard(client)
        session = self._sessions.get(client)
        if session is not None and self._world.node.alive:
            self._world.spawn(self._end_after_grace(session), f"session.{client}")

    async def _end_after_grace(self, session: Session) -> None:
        if session.grants or session.taking:
            await self._world.clock.sleep(self._grace_ns)
        if session.client in self._connected or self._sessions.get(session.client) is not session:
            return
        del self._sessions[session.client]
        for task, _ in list(session.taking.values()):
            if task is not None:
                task.cancel()
        if session.grants:
            logs.info("client.lost", client=session.client, grants=len(session.grants))
        for number in list(session.grants):
            await self._lose(session, number)

    async def _lose(self, session: Session, number: int) -> None:
        resource, grant = session.grants.pop(number)
        self.counts["lost"] += 1
        lost = getattr(resource, "lost", None)
        await (lost(grant) if lost is not None else grant.release())


def _acquisition(resource: Resource, take: Take) -> Acquisition:
    wait = take.wait_ns / SECOND_NS
    if not take.names:
        return resource.acquire(take.tenant, take.amount, wait=wait, key=take.key)
    claim = getattr(resource, "claim", None)
    if claim is None:
        raise UsageError(f"{resource.name} is of kind {resource.kind}; names are claimed from kind claim")
    acquisition: Acquisition = claim(take.names, take.tenant, wait=wait, key=take.key)
    return acquisition


def _granted(grant: Grant) -> Granted:
    return Granted(grant.amount, grant.fence, grant.fallback)
