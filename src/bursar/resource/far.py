"""Resources of a daemon elsewhere: a line to it, and a decider that asks over it.

The door of a client is the same door; what is far away is who decides. A lot comes with an answer,
and is spent here; what was spent of it is told with the next question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bursar.errors import (
    BursarError,
    DeniedError,
    NetworkError,
    NoAnswerError,
    Refused,
    Unknown,
    UnreachableError,
    UsageError,
)
from bursar.resource import wire
from bursar.resource.decider import Decider, Explanation, Seen, Verb
from bursar.resource.door import Resource
from bursar.resource.fallback import Fallback
from bursar.resource.line import RECONNECT_NS, RETRY_NS, Line, read_error
from bursar.resource.statistics import Statistics
from bursar.resource.tickets import Granted, Ticket
from bursar.world import MILLISECOND_NS, SECOND_NS, Message, Task, World

ANSWER_NS = 215 * MILLISECOND_NS
"""An answer may take so long beyond what the caller waits: the daemon decides a little sooner, and the door
here allows a little more."""

DO_NS = 15 * SECOND_NS
"""For a verb of the kind's own: ten thousand tenants are set in one."""

REPEAT_NS = 20 * MILLISECOND_NS
"""A refusal is repeated here for so long at most, so that overload is not a round trip each."""

SILENT = "bursar did not answer in time; what it grants after all is given back"

PPM = 1_000_000


class Far:
    """The resources of a daemon, as its client has them."""

    decider_class: type[FarDecider]

    def __init__(self, world: World, peers: Sequence[str], token: str | None = None) -> None:
        self.resources: dict[str, Resource] = {}
        self._deciders: dict[str, FarDecider] = {}
        self._world = world
        self._line = Line(world, peers, token, learn=self._learn, recall=self._recall)

    async def open(self, timeout_ns: int) -> None:
        """Learn what the daemon has. Raises DeniedError for a wrong token, NetworkError."""
        await self._line.open(timeout_ns)
        for door in self.resources.values():
            await door.start()

    def _learn(self, described: Mapping[str, wire.Described]) -> None:
        for name, each in described.items():
            known = self._deciders.get(name)
            if known is None:
                self._deciders[name] = decider = self.decider_class(self._line, name, each)
                self.resources[name] = Resource(self._world, decider, None)
                decider.door = self.resources[name]
            else:
                known.describe(each)

    def _recall(self, lot: int) -> None:
        for decider in self._deciders.values():
            tenant = decider.lots.get(lot)
            if tenant is not None:
                decider.door.hand.end(tenant)

    async def count(self, resource: str, most: int, find: Sequence[str]) -> Statistics:
        reply = await self._line.ask(wire.Count(resource, most, tuple(find)))
        assert isinstance(reply, wire.Counted), "asked for"
        return reply.statistics

    async def ask_fleet(self) -> wire.FleetTold:
        reply = await self._line.ask(wire.Fleet())
        assert isinstance(reply, wire.FleetTold), "asked for"
        return reply

    async def close(self) -> None:
        """Give back what is to be given back, for as long as the caller has patience."""
        for door in self.resources.values():
            await door.stop()
        await self._line.flush()
        self._line.close()


@dataclass(slots=True)
class Asked:
    """A question: `number` is its own, `task` asks; `open` until it was given back. `silent` are the
    daemons that were asked and did not answer."""

    number: int
    peer: str
    task: Task | None = None
    open: bool = True
    silent: set[str] = field(default_factory=set)


@dataclass(slots=True)
class LotPart:
    """What a lot is given back by: the number of the question that brought it."""

    number: int


class FarDecider(Decider):
    """Asks the daemon; where it cannot be reached, does what the policy says."""

    door: Resource
    answer_ns = 225 * MILLISECOND_NS

    def __init__(self, line: Line, name: str, described: wire.Described) -> None:
        self.name = name
        self.fallback = Fallback(described.without_bursar, described.period_ns)
        self.lots: dict[int, str] = {}
        self._line = line
        self._world = line.world
        self._ids: dict[str, Asked] = {}
        self._fetching: set[str] = set()
        self._refusals: dict[str, tuple[int, int, Refused]] = {}
        self._refused: dict[str, list[int]] = {}
        self.describe(described)

    def describe(self, described: wire.Described) -> None:
        """A daemon may have another policy after a while."""
        self.kind = described.kind
        self.offers = described.offers
        self.fallback.policy = described.without_bursar
        self.fallback.period_ns = described.period_ns
        self.verbs: Mapping[str, Verb] = {verb: partial(self._do, verb) for verb in described.verbs}
        self._good_ppm = PPM * (PPM - described.drift_ppm) // (PPM + described.drift_ppm)

    def is_ready(self) -> bool:
        return True

    def most(self, ticket: Ticket) -> int | None:
        return None

    def patience_ns(self, ticket: Ticket) -> int:
        return ticket.wait_ns + ANSWER_NS + ANSWER_NS

    # -- asking

    def decide(self, ticket: Ticket) -> None:
        if ticket.at_once:
            self._fetch(ticket)
            if self._line.away:
                answer = self._go_on(ticket, "bursar cannot be reached")
                if isinstance(answer, Granted):
                    ticket.give(answer)
            return
        repeated = self._repeat_refusal(ticket)
        if repeated is not None:
            ticket.give(repeated)
            return
        asked = Asked(self._line.next_number(), self._line.peer)
        ticket.place = asked
        self._line.hold()
        asked.task = self._world.spawn(self._ask(ticket, asked), f"client.{self.name}.take")

    async def _ask(self, ticket: Ticket, asked: Asked) -> None:
        now = self._world.clock.now()
        try:
            reply = await self._ask_in_time(ticket, asked, now)
        except (NetworkError, Unknown) as error:
            # Granted or not, nobody here will use it.
            self._line.give_back(asked.peer, asked.number, wire.UNDONE)
            self._give_up_elsewhere(ticket, asked)
            ticket.place = None
            silent = isinstance(error, NoAnswerError)
            ticket.give(self._go_on(ticket, SILENT if silent else f"bursar cannot be reached: {error}"))
            return
        except UsageError as error:
            self._line.let_go()
            ticket.give(error)
            return
        self._give_up_elsewhere(ticket, asked)
        ticket.give(self._read(ticket, asked, reply, now))

    def _give_up_elsewhere(self, ticket: Ticket, asked: Asked) -> None:
        """Another daemon answered: those that did not may have granted it too."""
        for peer in asked.silent - {asked.peer}:
            self._line.hold()
            self._line.give_back(peer, asked.number, wire.UNDONE)

    async def _ask_in_time(self, ticket: Ticket, asked: Asked, began: int) -> Message:
        """Ask, and ask again on a new connection while there is time: the number makes it once."""
        clock, wait_ns = self._world.clock, ticket.wait_ns
        told = self._line.take_told()
        while True:
            left_ns = max(0, wait_ns - (clock.now() - began))
            take, peer = self._write(ticket, asked.number, left_ns, told), self._line.peer
            try:
                asked.peer, reply = await self._line.call(take, left_ns + ANSWER_NS)
                return reply
            except UnreachableError:
                if clock.now() - began > min(wait_ns, RECONNECT_NS):
                    self._line.put_told_back(told)
                    raise
            except NoAnswerError:
                asked.silent.add(peer)
                if clock.now() - began > wait_ns:
                    self._line.put_told_back(told)
                    raise
            await clock.sleep(RETRY_NS)

    def _write(self, ticket: Ticket, number: int, wait_ns: int, told: tuple[wire.Told, ...]) -> wire.Take:
        return wire.Take(
            number,
            self.name,
            ticket.tenant,
            ticket.amount,
            wait_ns,
            ticket.key,
            ticket.names,
            ticket.priority,
            ticket.ahead > 0,
            told,
            ticket.hold_ns,
        )

    def _read(self, ticket: Ticket, asked: Asked, reply: Message, began: int) -> Granted | BursarError:
        if isinstance(reply, wire.Given):
            return self._take_in(ticket, asked, reply, began)
        self._line.let_go()
        error = read_error(reply) or Unknown("the daemon answered something else")
        if isinstance(error, Refused) and error.retry_after and not ticket.key:
            until = self._world.clock.now() + min(REPEAT_NS, int(error.retry_after * SECOND_NS))
            self._refusals[ticket.tenant] = (until, ticket.amount, error)
        return error

    def _take_in(self, ticket: Ticket, asked: Asked, given: wire.Given, began: int) -> Granted:
        now = self._world.clock.now()
        self.fallback.charge(now, ticket.tenant, given.period, given.amount + given.ahead)
        self._refusals.pop(ticket.tenant, None)
        # Counted from the asking, and by the slower of two clocks: over here first.
        until = began + given.good_ns * self._good_ppm // PPM
        if given.id and self.offers.settles:
            self._ids[given.id] = asked
        return Granted(
            given.amount,
            period=given.period,
            ahead=given.ahead,
            until=until,
            id=given.id,
            attempt=given.attempt,
            fence=given.fence,
            fallback=given.fallback,
            replayed=given.replayed,
            used=given.used,
            limit=given.limit,
            remaining=given.remaining,
            reset_ns=given.reset_ns,
            data=asked,
            lot=self._take_lot(ticket.tenant, asked.number, given, until) if given.ahead else None,
        )

    def _take_lot(self, tenant: str, number: int, given: wire.Given, until: int) -> Granted:
        self.lots[number] = tenant
        return Granted(
            0,
            period=given.period,
            ahead=given.ahead,
            until=until,
            limit=given.limit,
            remaining=given.remaining,
            reset_ns=given.reset_ns,
            data=LotPart(number),
        )

    def _go_on(self, ticket: Ticket, why: str) -> Granted | Unknown | DeniedError:
        """Without an answer: what the policy says, to those who may ask."""
        if self._line.denied is not None:
            return DeniedError(self._line.denied)
        mode = self.fallback.policy.mode
        now, plain = self._world.clock.now(), not ticket.key and not ticket.names
        if plain and self.fallback.allows(now, ticket.tenant, ticket.amount):
            return Granted(ticket.amount, fallback=mode)
        if mode != "refuse":
            why = f"{why}; and what {ticket.tenant} may have without it ({mode}) is used up for now"
        return Unknown(why, fallback=mode)

    def _repeat_refusal(self, ticket: Ticket) -> Refused | None:
        """What was refused a moment ago, and cannot be otherwise yet, is refused here."""
        known = self._refusals.get(ticket.tenant)
        if known is None or ticket.wait_ns or ticket.key or ticket.names:
            return None
        until, amount, refused = known
        now = self._world.clock.now()
        if now >= until:
            del self._refusals[ticket.tenant]
            return None
        if ticket.amount < amount:
            return None
        counts = self._refused.setdefault(ticket.tenant, [0, 0])
        counts[0] += ticket.amount
        counts[1] += 1
        return Refused(
            refused.why, limit=refused.limit, remaining=refused.remaining, retry_after=refused.retry_after
        )

    def _fetch(self, ticket: Ticket) -> None:
        """Somebody wanted a token at once: see that there is one next time."""
        if ticket.tenant in self._fetching:
            return
        self._fetching.add(ticket.tenant)
        self._world.spawn(self._fetch_lot(ticket.tenant, ticket.amount), f"client.{self.name}.fetch")

    async def _fetch_lot(self, tenant: str, amount: int) -> None:
        try:
            await self.door.fetch(tenant, amount)
        except (Refused, Unknown, UsageError):
            # Asking again at once would bring the same; `acquire` says what it is.
            await self._world.clock.sleep(REPEAT_NS)
        finally:
            self._fetching.discard(tenant)

    def withdraw(self, ticket: Ticket) -> Refused | Unknown | DeniedError | None:
        asked: Asked | None = ticket.place
        if asked is None:
            return Unknown("nothing is here ahead of use yet")
        if asked.task is not None:
            asked.task.cancel()
        ticket.place = None
        self._line.give_back(asked.peer, asked.number, wire.UNDONE)
        if ticket.late is not None:
            return Unknown("the caller gave up")
        answer = self._go_on(ticket, SILENT)
        if isinstance(answer, Granted):
            ticket.give(answer)
            return None
        return answer

    # -- giving back

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        part = granted.data
        if part is None:
            return  # by the policy, without the daemon
        self.fallback.charge(self._world.clock.now(), tenant, granted.period, -unused)
        if isinstance(part, LotPart):
            self._line.tell(part.number, 0, 0, unused, 0, 0)
        else:
            self._close(part, unused)

    def undo(self, tenant: str, granted: Granted) -> Awaitable[None] | None:
        if isinstance(granted.data, Asked):
            self.fallback.charge(self._world.clock.now(), tenant, granted.period, -granted.amount)
            self._close(granted.data, wire.UNDONE)
        return None

    def finish(self, granted: Granted) -> Awaitable[None] | None:
        asked: Asked | None = granted.data
        if asked is not None and granted.attempt:  # an earlier build's daemon says none, and knows no release
            return self._release(asked, granted)
        if asked is not None:
            self._close(asked, 0)
        return None

    async def _release(self, asked: Asked, granted: Granted) -> None:
        """Names are in others' way, so the caller goes on once they are free. Raises Unknown if the daemon
        does not say so; it is told until it does."""
        if not asked.open:
            return
        asked.open = False
        self._line.let_go()
        message = wire.Release(self.name, granted.id, granted.attempt, asked.number)
        try:
            await self._line.ask(message)
        except (NetworkError, Unknown) as error:
            self._line.tell_later(message)
            raise Unknown(f"{granted.id} still has its names, and is released later: {error}") from error
        except asyncio.CancelledError:
            self._line.tell_later(message)
            raise

    def _close(self, asked: Asked, unused: int) -> None:
        if asked.open:
            asked.open = False
            self._line.give_back(asked.peer, asked.number, unused)

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        number = granted.data.number
        self.lots.pop(number, None)
        if unspent:
            self.fallback.charge(self._world.clock.now(), tenant, granted.period, -unspent)
        refused, refusals = self._refused.pop(tenant, (0, 0))
        self._line.tell(number, seen.arrived, seen.requests, unspent, refused, refusals)

    async def settle(self, id: str, used: int | None) -> None:
        """Told to the daemon until it knows. Whoever settles hears of a mistake, if there is a daemon
        to find it."""
        asked = self._ids.pop(id, None)
        if asked is not None and asked.open:
            asked.open = False
            self._line.let_go()
        message = wire.Settle(self.name, id, used, asked.number if asked is not None else 0)
        try:
            await self._line.ask(message, ANSWER_NS)
        except (NetworkError, Unknown) as error:
            self._world.trace("client.settles_later", id=id, why=str(error))
            self._line.tell_later(message)

    async def grow(self, id: str, size: int) -> int:
        found = await self._ask_of(wire.Grow(self.name, id, size, self._number_of(id)))
        assert isinstance(found, int), "asked for"
        return found

    async def extend(self, id: str, hold_ns: int) -> None:
        await self._ask_of(wire.Extend(self.name, id, hold_ns, self._number_of(id)))

    def _number_of(self, id: str) -> int:
        asked = self._ids.get(id)
        return 0 if asked is None else asked.number

    async def _ask_of(self, message: wire.Grow | wire.Extend) -> Any:
        """Of a grant: asking again is asking once, so whoever is told nothing may."""
        try:
            reply = await self._line.ask(message, ANSWER_NS)
        except NetworkError as error:
            raise Unknown(f"the daemon did not answer: ask again ({error})") from error
        assert isinstance(reply, wire.Done), "asked for"
        return reply.value

    async def more(self, granted: Granted, names: tuple[str, ...], wait_ns: int) -> None:
        """Asked once: where no answer comes, what was granted goes with the rest."""
        asked = granted.data
        if not isinstance(asked, Asked):
            raise UsageError("this grant is the policy's alone, made without the daemon; it cannot have more")
        message = wire.More(self.name, asked.number, names, wait_ns)
        try:
            reply = await self._line.ask(message, wait_ns + 2 * ANSWER_NS)
        except NetworkError as error:
            what = f"the daemon did not answer; what it grants goes with the rest ({error})"
            raise Unknown(what) from error
        assert isinstance(reply, wire.Given), "asked for"
        granted.fence, granted.amount = reply.fence, reply.amount

    # -- telling

    async def _do(self, verb: str, **arguments: Any) -> Any:
        reply = await self._line.ask(wire.Do(self.name, verb, arguments), DO_NS)
        assert isinstance(reply, wire.Done), "asked for"
        return reply.value

    async def explain(self, tenant: str) -> Explanation:
        reply = await self._line.ask(wire.Explain(self.name, tenant))
        assert isinstance(reply, wire.Explained), "asked for"
        return reply.explanation

    async def statistics(self) -> Statistics:
        reply = await self._line.ask(wire.Count(self.name))
        assert isinstance(reply, wire.Counted), "asked for"
        return reply.statistics


Far.decider_class = FarDecider
