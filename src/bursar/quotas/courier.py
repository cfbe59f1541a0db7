"""Runs a node's book: journal, network, time, the store; and hands out what it answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from bursar.book import Effects, Record, Send
from bursar.courier import Alarm
from bursar.errors import (
    JournalError,
    NodeExistsError,
    NodeMissingError,
    StoreError,
    Unknown,
)
from bursar.fleet import retries
from bursar.quotas import accounts, adoption, replay
from bursar.quotas.accounts import Guards, Opening
from bursar.quotas.balances import Hold
from bursar.quotas.book import NodeBook
from bursar.quotas.entries import read_identity
from bursar.quotas.homes import HomeKeeper
from bursar.quotas.layout import Layout, Mints
from bursar.quotas.messages import Messages, Note
from bursar.quotas.parting import Parting
from bursar.quotas.registry import Registry
from bursar.quotas.requests import Refusal, Taken
from bursar.quotas.rules import BURSAR, Rules
from bursar.quotas.tree import Place, Tree
from bursar.quotas.windows import split_account
from bursar.world import MILLISECOND_NS, Message, Operation, World

ResultT = TypeVar("ResultT")

RETRY_NS = 50 * MILLISECOND_NS
LINGER_NS = 2 * MILLISECOND_NS
"""A line that nobody waits for may wait so long for others to be synced with."""

COMPACT_LINES = 100_000
"""The journal is made short again after so many lines, and as many as it was made short to."""

Waiter = Callable[[Hold | Refusal | Taken], None]
"""Takes the answer to a request, once."""


class QuotaCourier:
    """One node of one resource."""

    book_class: type[NodeBook] = NodeBook

    def __init__(self, world: World, resource: str, *, block: int = 0, rules: Rules = BURSAR) -> None:
        self.world = world
        self.layout = Layout(resource, world.fleet.store_name().epoch)
        self.topic = f"quota/{resource}"
        self.book = self.book_class(world.name, rules, block=block)
        self._journal = world.journal(self.topic)
        self._lines = 0
        self._compact_at = COMPACT_LINES
        self._sync_wanted = asyncio.Event()
        self._lingering = False
        self._waiting: dict[int, Waiter] = {}
        self._syncing: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.homes = HomeKeeper(self)
        self.deposed = ""
        self.recalled: Callable[[Iterable[str]], None] | None = None
        self.met: Callable[[str], None] = lambda tenant: None
        self.limited: Callable[[str, int], None] = lambda account, limit: None
        self._alarm = Alarm(world, self.topic, lambda: self.book.wake_at(), self._tick)
        self.registry = Registry(world, self.layout, self, self._list_live)

    async def open(self) -> None:
        """Take up this node's ledger, and begin. Raises JournalError if it may not be taken up."""
        records = list(self._journal.replay())
        identity = read_identity(records)
        if identity is None:
            identity = await self.persist(self._choose_identity)
        self.book = self.book_class(identity, self.book.rules, block=self.book.block)
        self.book.replay(records)
        await self.persist(partial(adoption.enter, self.world, self.layout, self.book.ledger))
        await self.persist(self._check_generation)
        horizon = await self.persist(self._read_horizon)
        generation, name = self.book.ledger.generation + 1, self.world.fleet.store_name()
        self.perform(self.book.open(self.world.clock.now(), generation, name.uuid, name.epoch))
        await self._journal.sync()
        self.perform(self.book.synced(self.world.clock.now(), self._lines))
        self.ended(horizon.ends_s)
        await self.persist(self._tell_generation)
        self._begin()

    async def persist(self, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Try until the store has answered. What is tried may be done twice."""
        return await retries.persist(self.world, attempt)

    def _begin(self) -> None:
        self.tree = Tree(self.world, self.layout, self.book.identity, self._join)
        self.world.network.serve(self.topic, Messages, self._receive)
        self.world.spawn(self._sync_lines(), f"{self.topic}.sync")
        self._alarm.start()
        self.tree.start()
        self.registry.start()
        self.homes.start()
        self.world.spawn(self._watch_generation(), f"{self.topic}.generation")

    # -- the ledger's life

    async def _watch_generation(self) -> None:
        """If another process has taken this ledger up, from a copy of the state directory, it is the newer
        one: this one must not use the same units."""
        ledger = self.book.ledger
        newest = await self.persist(partial(adoption.wait_for_newer, self.world, self.layout, ledger))
        self.deposed = (
            f"the ledger {ledger.identity} of {self.topic} was taken up by another process (generation "
            f"{newest}, this is {ledger.generation}): two nodes have copies of one state directory. Stop "
            "this one, and give it another name and an empty state directory"
        )
        self.world.trace("quota.deposed", generation=newest)
        await self.persist(self.tree.leave)

    async def _choose_identity(self) -> str:
        """A node without a ledger begins one. If it had one, that must be fenced first: its units
        are then written off, and cannot be handed out a second time."""
        await self.world.store.ensure(self.layout.ledgers)
        await self.world.store.sync()
        epoch = self.world.fleet.store_name().epoch
        if epoch > 1:
            await adoption.check_earlier(self.world, self.layout)
        number, name = 1, adoption.name_ledger(self.world.name, epoch, 1)
        while (stat := await self.world.store.exists(self.layout.ledger(name))) is not None:
            if stat.version == 0:
                break  # entered, but it never lived: nothing was ever moved in its name
            if await self.world.store.exists(self.layout.fence(name)) is None:
                raise adoption.make_lost_error(name, self.topic)
            number += 1
            name = adoption.name_ledger(self.world.name, epoch, number)
        return name

    async def _check_generation(self) -> None:
        """A ledger older than the store knows is a restored copy: its units may have moved since."""
        store, ledger = self.world.store, self.book.ledger
        path = self.layout.ledger(ledger.identity)
        if ledger.generation and await store.exists(self.layout.ledgers) is None:
            raise JournalError(
                f"the ledger {ledger.identity} of {self.topic} is in this node's state directory, and the "
                "store has no such quota: restore the store, or begin anew without the state directory"
            )
        for folder in self.layout.folders():
            await store.ensure(folder)  # an older bursar may have begun this quota
        try:
            await store.create(path, b"0")
        except NodeExistsError:
            pass  # it lived before
        await store.sync()
        data, _ = await store.get(path)
        if ledger.generation < int(data):
            raise JournalError(
                f"the ledger {ledger.identity} of {self.topic} is a copy of generation "
                f"{ledger.generation}, the newest was {int(data)}: restore that one, or "
                f"`bursar quota fence {ledger.identity}` and start without one"
            )

    async def _read_horizon(self) -> accounts.Horizon:
        """The newest: what is over must be known before anybody asks."""
        await self.world.store.sync()
        return await accounts.read_horizon(self.world.store, self.layout)

    async def _tell_generation(self) -> None:
        """From now on every older copy is refused; and if this ledger was written off, it is back."""
        store, ledger = self.world.store, self.book.ledger
        fence = self.layout.fence(ledger.identity)
        await store.set(self.layout.ledger(ledger.identity), str(ledger.generation).encode())
        if await store.exists(fence) is not None:
            self.book.keys.doubt()  # before it is gone: of a deletion the reply may be lost
        try:
            await store.delete(fence)
        except NodeMissingError:
            return  # it was not fenced
        self.book.keys.doubt()

    # -- carrying

    def perform(self, effects: Effects) -> None:
        """Carry out what the book asked for, and hand out what it answered. Nothing, once another process
        has the ledger."""
        if self.deposed:
            self.book.answers = []
            return
        lines = self._lines
        for effect in effects:
            match effect:
                case Send(to, message):
                    self.world.network.send(to, self.topic, message)
                case Record(data):
                    self._journal.append(data)
                    self._lines += 1
        if self._lines > lines:
            self._want_sync()
        if self.book.answers:
            self._hand_out()
        if self.book.recalls and self.recalled is not None:
            recalls, self.book.recalls = self.book.recalls, {}
            self.recalled(recalls)
        self.homes.look()
        self._alarm.set()

    def _want_sync(self) -> None:
        """At once if anybody waits for it. What nobody waits for (a hold that expired) is synced with
        what comes next: alone it would only make the next grant wait for two syncs."""
        if self.book.awaits_sync or self._syncing:
            self._sync_wanted.set()
        elif not self._lingering:
            self._lingering = True
            self.world.spawn(self._linger(), f"{self.topic}.linger")

    async def _linger(self) -> None:
        await self.world.clock.sleep(LINGER_NS)
        self._lingering = False
        self._sync_wanted.set()

    def _hand_out(self) -> None:
        answers, self.book.answers = self.book.answers, []
        for answer in answers:
            outcome = answer.outcome
            said = self.book.ledger.find_hold(outcome) if isinstance(outcome, int) else outcome
            waiter = self._waiting.pop(answer.request, None)
            if waiter is not None and said is not None:
                waiter(said)
            elif isinstance(said, Hold) and said.used is None:
                # Whoever asked has gone: what was reserved is given back.
                self.perform(self.book.settle(self.world.clock.now(), said, 0))

    async def _receive(self, sender: str, message: Message) -> None:
        """What is said about an account is understood by its mints, so these are read first. Where the store
        does not answer it is heard all the same: units may have come."""
        if isinstance(message, Note) and message.account not in self.mints:
            try:
                await self.registry.read(split_account(message.account)[0])
            except StoreError as error:
                self.world.trace("quota.unread", account=message.account, why=str(error))
        self.perform(self.book.receive(self.world.clock.now(), sender, message))

    def _tick(self, now: int) -> None:
        self.perform(self.book.tick(now))

    async def _sync_lines(self) -> None:
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            lines = self._lines
            if lines > self._compact_at:
                # Taken in one step with the count: lines written from now on follow the new file.
                records = replay.compact(self.book.ledger)
                self._compact_at = lines + len(records) + COMPACT_LINES
                await self._journal.rewrite(records)
            else:
                await self._journal.sync()
            self.perform(self.book.synced(self.world.clock.now(), lines))
            self._tell_synced(lines)

    def _tell_synced(self, lines: int) -> None:
        while self._syncing and self._syncing[0][0] <= lines:
            _, waiter = self._syncing.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def wait_durable(self) -> None:
        """Until all that was written so far is on disk. Raises Unknown: another process has the ledger."""
        if self.deposed:
            raise Unknown(self.deposed)
        if self.book.ledger.durable < self._lines:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._syncing.append((self._lines, waiter))
            self._sync_wanted.set()
            await waiter

    def _join(self, place: Place) -> None:
        self.world.trace("quota.place", parent=place.parent, children=",".join(place.children))
        self.perform(self.book.join(self.world.clock.now(), *place))

    # -- what the registry tells

    @property
    def mints(self) -> dict[str, Mints]:
        """Of each account that is known here."""
        return self.registry.mints

    def _list_live(self) -> Sequence[str]:
        return self.tree.up or [self.book.identity]

    def opened(self, tenant: str) -> None:
        self.met(tenant)

    def minted(self, account: str, mints: Mints) -> None:
        self.perform(self.book.mint(self.world.clock.now(), account, mints))

    def fenced(self, account: str, why: str) -> None:
        if why != self.book.stopped.get(account, ""):
            self.world.trace("quota.fenced" if why else "quota.unfenced", account=account)
            self.perform(self.book.stop(self.world.clock.now(), account, why))

    def ended(self, horizon_s: int) -> None:
        """Accounts of windows that ended by then are over."""
        self.perform(self.book.forget(self.world.clock.now(), horizon_s))
        self.registry.end(horizon_s)

    async def heard(self, version: int) -> None:
        """All that was changed by that version of the news is carried out here. Once it is durable the store
        is told, for whoever changed it and waits."""
        if self.deposed:
            return
        await self.wait_durable()
        path, data = self.layout.hearer(self.book.identity), str(version).encode()
        try:
            await self.world.store.set(path, data)
        except NodeMissingError:
            await self.world.store.ensure(path)
            await self.world.store.set(path, data)

    # -- what the resource asks for

    async def open_account(self, opening: Opening, guards: Guards) -> None:
        """See that it exists and is known here. `guards` are of the terms that its limit comes from."""
        await self.registry.open(opening, guards)

    async def set_limit(
        self, account: str, limit: int, guards: Guards, also: Sequence[Operation] = (), *, once: bool = False
    ) -> None:
        """What the policy says now, for every node; this one knows at once. `also` is done with it. `once`:
        it is not the policy that says so, which goes on from there when it changes."""
        store = self.world.store
        await store.sync()  # a session that lags behind may not see what is there
        live = [self.book.identity, *await self.tree.live()]
        mints = await accounts.change_limit(store, self.layout, account, limit, live, guards, also, once=once)
        self.registry.learn_mints(account, mints)

    def reserve(
        self,
        tenant: str,
        chain: tuple[str, ...],
        amount: int,
        key: str | None,
        waiter: Waiter,
        hold_ns: int = 0,
    ) -> int:
        """Ask the book; `waiter` takes what it answers, at once or later. The number is for `cancel`."""
        number, effects = self.book.request(self.world.clock.now(), tenant, chain, amount, key, hold_ns)
        self._waiting[number] = waiter
        self.perform(effects)
        return number

    def grow(self, hold: Hold, chain: tuple[str, ...], amount: int, waiter: Waiter) -> int:
        """The same, for more of a hold."""
        number, effects = self.book.grow(self.world.clock.now(), hold, chain, amount)
        self._waiting[number] = waiter
        self.perform(effects)
        return number

    def cancel(self, number: int) -> bool:
        """Nobody waits any more. False: the hold is made, and its answer is on its way."""
        if number not in self.book.requests:
            return False
        del self._waiting[number]
        self.perform(self.book.cancel(self.world.clock.now(), number))
        return True

    def settle(self, hold: Hold, used: int, unpaid: int = 0) -> None:
        self.perform(self.book.settle(self.world.clock.now(), hold, used, unpaid))

    def note_unpaid(self, hold: Hold, unpaid: int) -> None:
        self.perform(self.book.note_unpaid(self.world.clock.now(), hold, unpaid))

    def extend(self, hold: Hold, hold_ns: int) -> None:
        self.perform(self.book.extend(self.world.clock.now(), hold, hold_ns))

    async def set_block(self, block: int) -> None:
        """How much is charged ahead from now on. 0: nothing, and what was is given back, durably."""
        self.book.block = block
        self.book.blocks.clear()
        if not block:
            await self.wait_durable()  # what is being charged
            self.perform(self.book.end_blocks(self.world.clock.now()))
            await self.wait_durable()

    async def close(self) -> None:
        """Write down what is open, give back what was charged ahead, durably, and hand what is unspent
        over to a node that stays."""
        if self.deposed:
            return
        await self.set_block(0)
        await Parting(self).hand_over()
        await self._journal.sync()
