"""The daemon's side of its clients: what each has been granted and has not given back.

A session begins with a client's first word and ends some time after its last. What it still holds
then is handed to the kind (`Decider.lose`), but for what can be settled by its id: that expires by
its policy alone.

Who a client is, it says once, with a token or by its certificate; what it may do is looked up for each
of its requests (`bursar.fleet.rights`). A client that lost its right is told that it must open a
session: it can still give back what it holds, and is forgotten like one that is gone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bursar.errors import BursarError, DeniedError, Refused, Unknown, UsageError
from bursar.fleet.layout import NodeRecord
from bursar.fleet.rights import NO_RIGHTS, Caller, Rights, may_anything
from bursar.policy.values import PoolPolicy, RatePolicy, suggest
from bursar.resource import wire
from bursar.resource.client_lots import ClientLots
from bursar.resource.door import Resource
from bursar.resource.excerpts import Wanted
from bursar.resource.guarded import Guarded, write_unknown
from bursar.resource.hand import AHEAD_MAX
from bursar.resource.sessions import Held, Out, Session
from bursar.resource.tickets import Granted, Ticket
from bursar.world import SECOND_NS, Message, World

GRACE_NS = 10 * SECOND_NS
"""A client that said nothing for so long is gone. One that holds something says so more often."""

SWEEP_NS = SECOND_NS
GRANTS_MAX = 100_000
DRIFT_PPM = 1_000


class Clients:
    """Answers clients from the resources of one node."""

    lots_class = ClientLots

    def __init__(
        self,
        world: World,
        resources: Mapping[str, Resource],
        *,
        rights: Rights = NO_RIGHTS,
        certified: bool = False,
        grace_ns: int = GRACE_NS,
        nodes: Callable[[], Mapping[str, NodeRecord]] = dict,
    ) -> None:
        """`certified`: the network has checked clients' names against their certificates."""
        self.counts: Counter[str] = Counter()
        self._nodes = nodes
        self._world = world
        self._resources = resources
        self._rights = rights
        self._certified = certified
        self._grace_ns = grace_ns
        self._sessions: dict[str, Session] = {}
        self.lots = self.lots_class(world, self._sessions)

    def start(self) -> None:
        self._rights.follow(self._enforce)
        self._world.network.serve(wire.TOPIC, wire.Requests, self._answer, anyone=True)
        self._world.spawn(self._sweep(), "clients.sweep")

    @property
    def held(self) -> int:
        """How many grants clients hold."""
        return sum(len(session.grants) for session in self._sessions.values())

    async def _answer(self, client: str, message: Any) -> Message:
        try:
            if isinstance(message, wire.Open):
                return await self._open(client, message.token)
            session = self._find_session(client, isinstance(message, wire.GiveBack | wire.Release))
            return wire.NotOpened() if session is None else await self._handle(session, message)
        except DeniedError as error:
            self.counts["denied"] += 1
            return wire.Denied(str(error))
        except UsageError as error:
            return wire.Misused(str(error))
        except Refused as refused:
            return _write_refusal(refused)
        except Unknown as unknown:
            return wire.Uncertain(unknown.why, unknown.fallback)

    def _find_session(self, client: str, gives_back: bool) -> Session | None:
        """None: say first who you are. Without rights nobody need."""
        session = self._sessions.get(client)
        if session is None:
            try:
                session = self._begin(client, self._identify(client, None))
            except DeniedError:
                return None
        if session.caller.valid:
            session.heard_at = self._world.clock.now()
            return session
        return session if gives_back else None

    def _identify(self, client: str, token: str | None) -> Caller:
        # Before the slash is the name in the certificate, behind it what tells its processes apart.
        names = (client.partition("/")[0],) if self._certified else ()
        return self._rights.identify(token, names)

    def _begin(self, client: str, caller: Caller) -> Session:
        session = self._sessions.get(client)
        if session is None:
            session = self._sessions[client] = Session(client, caller, self._world.clock.now())
        session.caller = caller
        return session

    async def _open(self, client: str, token: str | None) -> Message:
        try:
            caller = self._identify(client, token)
        except DeniedError as error:
            self.counts["token_refused"] += 1
            await self._world.clock.sleep(self._rights.note_refused(client.partition("/")[0], str(error)))
            raise
        session = self._begin(client, caller)
        session.heard_at = self._world.clock.now()
        known = {name: door for name, door in self._resources.items() if may_anything(caller, name)}
        return wire.Opened({name: describe(door) for name, door in known.items()})

    async def _handle(self, session: Session, message: Any) -> Message:
        match message:
            case wire.Take():
                return await self._take(session, message)
            case wire.GiveBack():
                return await self._give_back(session, message)
            case wire.Settle():
                return await self._settle(session, message)
            case wire.Release():
                return await self._release(session, message)
            case wire.Grow():
                return await self._grow(session, message)
            case wire.More():
                return await self._more(session, message)
            case wire.Extend():
                _, tenant = self._find_held(session, message)
                await self._find(session, message.resource).extend(message.id, message.hold_ns, tenant)
                return wire.Done()
            case wire.Explain():
                return wire.Explained(await self._find(session, message.resource).explain(message.tenant))
            case wire.Count():
                wanted = Wanted(message.most, message.find) if message.most > 0 else None
                return wire.Counted(await self._find(session, message.resource).statistics(wanted))
            case wire.Do():
                found = self._find(session, message.resource)
                return wire.Done(await found.do(message.verb, message.arguments))
            case wire.Alive():
                return wire.Done()
            case wire.Fleet():
                session.caller.check("read")
                return wire.FleetTold(self._world.name, self._nodes())
        raise AssertionError("the network passes nothing else")

    def _find(self, session: Session, name: str) -> Guarded:
        resource = self._resources.get(name)
        if resource is None or not may_anything(session.caller, name):
            known = [each for each in self._resources if may_anything(session.caller, each)]
            raise UsageError(f"there is no resource {name[:100]!r} here{suggest(name[:100], known)}")
        return Guarded(resource, session.caller)

    async def _settle(self, session: Session, message: wire.Settle) -> Message:
        _, tenant = self._find_held(session, message)
        await self._find(session, message.resource).settle(message.id, message.used, tenant)
        session.grants.pop(message.number, None)
        return wire.Done()

    async def _release(self, session: Session, message: wire.Release) -> Message:
        held, _ = self._find_held(session, message)
        if held is not None:
            await self._return(session, message.number, 0)
        else:  # it was granted by an earlier life of this daemon, or by another one
            await self._find(session, message.resource).release(message.id, message.attempt)
        return wire.Done()

    async def _grow(self, session: Session, message: wire.Grow) -> Message:
        held, tenant = self._find_held(session, message)
        size = await self._find(session, message.resource).grow(message.id, message.size, tenant)
        if held is not None:
            held.door.note_size(held.tenant, held.granted, size)
        return wire.Done(size)

    async def _more(self, session: Session, message: wire.More) -> Message:
        held = session.grants.get(message.number)
        if held is None or held.door.name != message.resource:
            raise UsageError("this client holds no such grant at this daemon any more; claim anew")
        Guarded(held.door, session.caller).check(held.tenant)
        await held.door.more_of(held.granted, message.names, max(0, message.wait_ns))
        return self._given(held.granted)

    def _find_held(
        self, session: Session, message: wire.Settle | wire.Release | wire.Grow | wire.Extend
    ) -> tuple[Held | None, str | None]:
        """The grant that is meant, if it is this client's, and its tenant."""
        held = session.grants.get(message.number)
        if held is None or held.granted.id != message.id or held.door.name != message.resource:
            return None, None
        return held, held.tenant

    # -- granting

    async def _take(self, session: Session, take: wire.Take) -> Message:
        for told in take.told:
            self.lots.hear(session, told)
        held = session.grants.get(take.number)
        if held is not None:
            return self._given(held.granted)
        if take.number in session.returned:
            return wire.Misused("this acquisition was given up by the client")
        under_way = session.taking.get(take.number)
        if under_way is not None:
            return await asyncio.shield(under_way[2])
        if len(session.grants) + len(session.taking) >= GRANTS_MAX:
            return wire.Misused(f"this client holds {GRANTS_MAX} grants; release some")
        door = self._resources.get(take.resource)
        if door is None or not session.may_acquire(door, take.tenant):
            found = self._find(session, take.resource)
            found.check(take.tenant)
            door = found.door
        return await self._take_once(session, door, take)

    async def _take_once(self, session: Session, door: Resource, take: wire.Take) -> Message:
        ticket = Ticket(
            take.tenant,
            take.amount,
            key=take.key,
            names=take.names,
            priority=take.priority,
            wait_ns=max(0, take.wait_ns),
            ahead=AHEAD_MAX if take.ahead and door.decider.offers.lots else 0,
            held_by=session.client,
            hold_ns=take.hold_ns,
        )
        outcome: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        session.taking[take.number] = (door, ticket, outcome)
        answer: Message = wire.Uncertain("the daemon gave up", "refuse")
        try:
            answer = await self._decide(session, door, ticket, take.number)
        finally:
            del session.taking[take.number]
            outcome.set_result(answer)
        if take.number in session.returned:
            Guarded(door, session.caller).check(take.tenant)  # it may have lost the right meanwhile
        return answer

    async def _decide(self, session: Session, door: Resource, ticket: Ticket, number: int) -> Message:
        try:
            door.check(ticket)
            granted = await door.asking.decide(ticket)
        except UsageError as error:
            return wire.Misused(str(error))
        except Refused as refused:
            self.counts["refused"] += 1
            if refused.reason == "tenant" and not session.caller.may("acquire", door.name):
                refused = Refused(write_unknown(door, ticket.tenant), reason="tenant")
            return _write_refusal(refused)
        except Unknown as unknown:
            self.counts["unknown"] += 1
            return wire.Uncertain(unknown.why, unknown.fallback)
        self.counts["granted"] += 1
        session.grants[number] = Held(door, ticket.tenant, granted)
        if granted.ahead:
            door.elsewhere = self.lots
            session.lots[number] = Out(door, ticket.tenant, granted)
        if number in session.returned or self._sessions.get(session.client) is not session:
            await self._return(session, number, wire.UNDONE)
            self.lots.hear(session, wire.Told(0, number, 0, 0, granted.ahead))
        return self._given(granted)

    def _given(self, granted: Granted) -> wire.Given:
        return wire.Given(
            granted.amount,
            granted.period,
            granted.ahead,
            max(0, granted.until - self._world.clock.now()) if granted.ahead else 0,
            granted.id,
            granted.fence,
            granted.fallback,
            granted.replayed,
            granted.used,
            granted.limit,
            granted.remaining,
            granted.reset_ns,
            granted.attempt,
        )

    # -- taking back

    async def _give_back(self, session: Session, message: wire.GiveBack) -> Message:
        problems: list[BursarError] = []
        for told in message.told:
            self.lots.hear(session, told)
        for number, unused in message.grants:
            if number in session.grants:
                try:
                    await self._return(session, number, unused)
                except (UsageError, Refused, Unknown) as error:
                    problems.append(error)  # the others of the batch come back all the same
            else:
                session.note_returned(number)
                if number in session.taking:
                    door, ticket, _ = session.taking[number]
                    door.asking.forsake(ticket)
        if problems:
            raise problems[0]
        return wire.Done()

    async def _return(self, session: Session, number: int, unused: int) -> None:
        held = session.grants.pop(number)
        self.counts["returned"] += 1
        if held.granted.replayed and held.door.settles:
            return  # a client that gives up a repeat does not end what whoever asked first holds
        if unused == wire.UNDONE and not held.granted.replayed:
            ending = held.door.undo(held.tenant, held.granted)
        else:
            used = held.granted.amount - unused if 0 < unused <= held.granted.amount else None
            ending = held.door.give_back(held.tenant, held.granted, used)
        if ending is not None:
            await ending

    # -- rights that were taken away

    def _enforce(self) -> None:
        """Whoever lost a right gets nothing more by it, not even what it has been waiting for; and what
        it has ahead of use is recalled."""
        for session in self._sessions.values():
            if session.caller.may("acquire"):
                continue
            for number, (door, ticket, _) in list(session.taking.items()):
                if not session.may_acquire(door, ticket.tenant):
                    session.note_returned(number)
                    door.asking.forsake(ticket)
            if self.lots.list_lost(session):
                self._world.spawn(self.lots.recall_lost(session), "clients.recall")

    # -- clients that go away

    async def _sweep(self) -> None:
        while True:
            await self._world.clock.sleep(SWEEP_NS)
            oldest = self._world.clock.now() - self._grace_ns
            for session in list(self._sessions.values()):
                if session.heard_at < oldest:
                    del self._sessions[session.client]
                    await self._end(session)

    async def _end(self, session: Session) -> None:
        for door, ticket, _ in list(session.taking.values()):
            door.asking.forsake(ticket)
        if session.grants:
            self._world.trace("client.lost", client=session.client, grants=len(session.grants))
        for held in session.grants.values():
            self.counts["lost"] += 1
            ending = self._lose(held)
            if ending is not None:
                await ending

    def _lose(self, held: Held) -> Awaitable[None] | None:
        if held.granted.id and held.door.decider.offers.settles:
            return None  # it is settled by its id, or expires by its policy
        return held.door.lose(held.granted)


def _write_refusal(refused: Refused) -> wire.Refusal:
    return wire.Refusal(refused.why, refused.limit, refused.remaining, refused.retry_after, refused.reason)


def describe(door: Resource) -> wire.Described:
    policy = door.policy
    assert policy is not None, "a daemon serves resources of its own node"
    return wire.Described(
        kind=door.kind,
        offers=door.decider.offers,
        without_bursar=policy.without_bursar,
        period_ns=policy.period_ns if isinstance(policy, RatePolicy | PoolPolicy) else SECOND_NS,
        drift_ppm=DRIFT_PPM,
        verbs=tuple(door.verbs),
    )
