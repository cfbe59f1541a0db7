"""Acquisitions with a key: the first is made, and all others, wherever they are asked, are told of it.

A key that is not known here is looked for in the store. If it has no home, units are held for it here
and this ledger becomes its home (`keys`); if it has one, that ledger is asked, and answers from its own
lines. Requests for one key at one node share one *attempt*, so that they do not race.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from bursar.errors import BursarError, NetworkError, Unknown, UsageError
from bursar.quotas import homes
from bursar.quotas.balances import Hold
from bursar.quotas.chains import Chains
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.keys import Home
from bursar.quotas.layout import HomeRecord, digest
from bursar.quotas.requests import Refusal, Taken, node_of
from bursar.quotas.settling import make_id
from bursar.resource import Granted, Ticket
from bursar.world import MILLISECOND_NS, Message, Task

ASK_NS = 150 * MILLISECOND_NS
"""A key's home answers from memory: an answer that takes longer is asked for again."""

RETRY_NS = 10 * MILLISECOND_NS

Said = Hold | Refusal | Taken


class Repeat(Message, frozen=True):
    """Your ledger is the home of this key: what became of it?"""

    ledger: str
    key: str
    tenant: str
    amount: int


class Repeated(Message, frozen=True):
    """This hold was made for it; `used` is None while it is open."""

    hold: int
    used: int | None


class Differs(Message, frozen=True):
    """The key was used for something else."""

    why: str


class Again(Message, frozen=True):
    """It is just changing, or not mine any more: look again."""


class Attempt:
    """What goes on for one key at one node. `request` is the number of the book's, while units are waited
    for; `stage` says what is waited for, to people."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.tickets: list[Ticket] = []
        self.stage = ""
        self.request: int | None = None
        self.task: Task | None = None

    @property
    def terms(self) -> tuple[str, int]:
        return self.tickets[0].tenant, self.tickets[0].amount


class Repeats:
    """The attempts of one node, and what it says about the keys whose home it is."""

    def __init__(
        self,
        courier: QuotaCourier,
        chains: Chains,
        grant: Callable[[Ticket, Hold], Granted],
        refuse: Callable[[Refusal], BursarError],
    ) -> None:
        """`grant` and `refuse` put into words what the book answered."""
        self._courier = courier
        self._chains = chains
        self._grant = grant
        self._refuse = refuse
        self._world = courier.world
        self._topic = f"{courier.topic}/keys"
        self._attempts: dict[str, Attempt] = {}
        self.forgotten = 0
        """Keys of ledgers that were written off, which were asked for again here."""

    def start(self) -> None:
        self._world.network.serve(self._topic, Repeat, self._serve)

    # -- tickets

    def decide(self, ticket: Ticket) -> None:
        key = ticket.key
        assert key is not None, "only requests with a key"
        entry = self._courier.book.keys.find(key)
        if entry is not None and entry.home is Home.OURS:
            ticket.give(self._repeat(ticket, entry.hold))
            return
        attempt = self._attempts.get(key) or self._begin(key)
        if attempt.tickets and attempt.terms != (ticket.tenant, ticket.amount):
            ticket.give(UsageError(_explain(key, *attempt.terms, ticket.tenant, ticket.amount)))
            return
        attempt.tickets.append(ticket)
        ticket.place = attempt

    def withdraw(self, ticket: Ticket) -> Unknown | None:
        attempt: Attempt = ticket.place
        last = attempt.tickets == [ticket]
        if last and attempt.request is not None and not self._courier.cancel(attempt.request):
            return None  # the hold is made: its answer is on its way
        attempt.tickets.remove(ticket)
        if not attempt.tickets:
            self._end(attempt)
        return Unknown(attempt.stage)

    def _begin(self, key: str) -> Attempt:
        attempt = self._attempts[key] = Attempt(key)
        attempt.task = self._world.spawn(self._run(attempt), f"{self._topic}.attempt")
        return attempt

    def _end(self, attempt: Attempt) -> None:
        if self._attempts.pop(attempt.key, None) is not None and attempt.task is not None:
            attempt.task.cancel()

    # -- the attempt

    async def _run(self, attempt: Attempt) -> None:
        try:
            while not await self._step(attempt):
                pass
        except UsageError as error:  # the tenant was just removed
            self._tell(attempt, partial(_say, error))
        if self._attempts.get(attempt.key) is attempt:
            del self._attempts[attempt.key]

    async def _step(self, attempt: Attempt) -> bool:
        """Go on as far as one answer of the store, of the book or of another node; True when it is over."""
        homes_, book = self._courier.homes, self._courier.book
        entry = book.keys.find(attempt.key)
        if entry is not None and entry.home is not Home.OURS:
            attempt.stage = f"the store has not said yet whose the key {attempt.key!r} is"
            await homes_.changed.wait()
            return False
        if entry is not None:
            return self._tell(attempt, lambda ticket: self._repeat(ticket, entry.hold))
        attempt.stage = f"the store has not said whether the key {attempt.key!r} was used before"
        record = await self._look(attempt.key)
        if record is not None and record.ledger == book.identity:
            await self._free_stray(attempt.key, record)
            return False
        if not attempt.tickets:
            return True
        return await (self._reserve(attempt) if record is None else self._ask_home(attempt, record))

    async def _look(self, key: str) -> HomeRecord | None:
        return await self._courier.persist(partial(homes.read, self._world.store, self._courier.layout, key))

    async def _free_stray(self, key: str, record: HomeRecord) -> None:
        """A record in this ledger's name that the ledger knows nothing of: it came late, after its hold
        was given back."""
        book = self._courier.book
        work = partial(homes.free, self._world.store, self._courier.layout, book.identity, {key: record.hold})
        await self._courier.persist(work)

    async def _reserve(self, attempt: Attempt) -> bool:
        """Nobody used the key: hold units for it, and become its home."""
        tenant, amount = attempt.terms
        attempt.stage = f"the account of {tenant} could not be opened: {self._chains.why}"
        while not await self._chains.try_open(tenant):
            await self._world.clock.sleep(RETRY_NS)
        chain = self._chains.find(tenant)
        attempt.stage = f"{amount} of {chain[0]} are not here, and not everybody answered in time"
        said = await self._request(attempt, chain)
        if isinstance(said, Hold):
            return self._tell_first(attempt, said)
        if isinstance(said, Refusal) and await self._look(attempt.key) is None:
            return self._tell(attempt, partial(_say, self._refuse(said)))
        return False  # somebody else was faster

    async def _request(self, attempt: Attempt, chain: tuple[str, ...]) -> Said:
        tenant, amount = attempt.terms
        for account in chain:
            if amount > self._chains.limit(account):
                return Refusal(account, None, amount)
        answered: asyncio.Future[Said] = asyncio.get_running_loop().create_future()
        hear = partial(_resolve, answered)
        attempt.request = self._courier.reserve(
            tenant, chain, amount, attempt.key, hear, attempt.tickets[0].hold_ns
        )
        try:
            return await answered
        finally:
            attempt.request = None

    async def _ask_home(self, attempt: Attempt, record: HomeRecord) -> bool:
        tenant, amount = attempt.terms
        home = record.ledger
        if record.terms != digest(tenant, amount):
            why = f"the key {attempt.key!r} was used for another tenant or amount: use another key"
            return self._tell(attempt, partial(_say, UsageError(why)))
        attempt.stage = f"the key {attempt.key!r} was used at {node_of(home)}, which does not answer"
        if home in self._courier.book.fenced:
            await self._forget(attempt.key, home)
            return False
        reply = await self._call(home, Repeat(home, attempt.key, tenant, amount))
        match reply:
            case Repeated(number, used):
                return self._tell(attempt, lambda ticket: self._repeat_from(ticket, home, number, used))
            case Differs(why):
                return self._tell(attempt, partial(_say, UsageError(why)))
        await self._world.clock.sleep(RETRY_NS)
        return False

    async def _forget(self, key: str, home: str) -> None:
        """What was charged with it is written off with its ledger, and nobody knows what was used of it."""
        work = partial(homes.forget, self._world.store, self._courier.layout, key, home)
        await self._courier.persist(work)
        self.forgotten += 1
        self._world.trace("quota.key_forgotten", key=key, ledger=home)

    async def _call(self, home: str, ask: Repeat) -> Message | None:
        try:
            reply: Message = await self._world.network.call(
                node_of(home), self._topic, ask, Repeated | Differs | Again, ASK_NS
            )
        except NetworkError:
            return None
        return reply

    # -- answers

    def _tell(self, attempt: Attempt, answer: Callable[[Ticket], Granted | BursarError]) -> bool:
        tickets, attempt.tickets = attempt.tickets, []
        del self._attempts[attempt.key]
        for ticket in tickets:
            ticket.give(answer(ticket))
        return True

    def _tell_first(self, attempt: Attempt, hold: Hold) -> bool:
        """One that still waits has acquired it; the others are told of that, and so is whoever came later and
        asked for another time than the hold was made with."""
        alike = [ticket for ticket in attempt.tickets if ticket.hold_ns == hold.hold_ns]
        first = next((ticket for ticket in alike if ticket.late is None), next(iter(alike), None))
        return self._tell(
            attempt,
            lambda ticket: self._grant(ticket, hold) if ticket is first else self._repeat(ticket, hold),
        )

    def _repeat(self, ticket: Ticket, hold: Hold) -> Granted | UsageError:
        if (hold.tenant, hold.amount) != (ticket.tenant, ticket.amount):
            return UsageError(
                _explain(ticket.key or "", hold.tenant, hold.amount, ticket.tenant, ticket.amount)
            )
        hold.repeated = True
        return self._repeat_from(ticket, self._courier.book.identity, hold.number, hold.claimed)

    def _repeat_from(self, ticket: Ticket, home: str, number: int, used: int | None) -> Granted:
        return Granted(
            ticket.amount,
            id=make_id(home, number),
            replayed=True,
            used=used,
            limit=self._chains.limit(self._chains.account(ticket.tenant)) or None,
            reset_ns=self._chains.left_ns(ticket.tenant),
        )

    async def _serve(self, sender: str, message: Message) -> Message:
        """Another node found that this ledger is the home of a key."""
        assert isinstance(message, Repeat), "the network passes nothing else"
        entry = self._courier.book.keys.find(message.key)
        if message.ledger != self._courier.book.identity:
            return Again()
        if entry is None and message.key not in self._attempts:
            self._begin(message.key)  # sees to a record that came late
        if entry is None or entry.home is not Home.OURS:
            return Again()
        hold = entry.hold
        if (hold.tenant, hold.amount) != (message.tenant, message.amount):
            return Differs(_explain(message.key, hold.tenant, hold.amount, message.tenant, message.amount))
        hold.repeated = True
        return Repeated(hold.number, hold.claimed)


def _resolve(answered: asyncio.Future[Said], said: Said) -> None:
    if not answered.done():
        answered.set_result(said)


def _say(error: BursarError, ticket: Ticket) -> BursarError:
    return error


def _explain(key: str, was: str, was_amount: int, tenant: str, amount: int) -> str:
    return (
        f"the key {key!r} was used for {was_amount} of {was}, not for {amount} of {tenant}: use another key"
    )
