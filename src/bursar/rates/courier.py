"""Carries the two books' messages: servers answer, controllers elect one that leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from bursar.book import Send
from bursar.courier import Alarm
from bursar.decoding import make_reader
from bursar.errors import (
    NodeExistsError,
    NodeMissingError,
    SessionExpiredError,
    StoreError,
    StoreUnknownError,
    VersionError,
)
from bursar.fleet.retries import RETRY_NS, renew
from bursar.rates.blocks import Blocks
from bursar.rates.candidacy import ANSWERS_NS, BEAT_MAX_NS, LOST_NS, Candidacy
from bursar.rates.controller import Commit, ControllerBook
from bursar.rates.messages import (
    Grant,
    Hearing,
    Leading,
    Missing,
    Poll,
    Started,
    State,
    ToController,
    ToServer,
    Wanted,
)
from bursar.rates.rounds import Rounds
from bursar.rates.server import ServerBook
from bursar.world import MILLISECOND_NS, SECOND_NS, Check, Delete, Journal, Message, Set, Stat, Task, World

ANNOUNCE_NS = 50 * MILLISECOND_NS
ANNOUNCE_MAX_NS = SECOND_NS
"""Between two announcements of a server that nobody asks, at first and in the end."""

STUCK_BEATS = 2
"""A leader that has waited for the store for more beats than this does not say that it is well."""

COMPACT_BYTES = 1024 * 1024
"""A journal is made short again after so many bytes."""

NO_STATE = State(0, "", 0, ())

_encode = msgspec.msgpack.Encoder().encode
read_state = make_reader(State, "state of a rate")


def controller_topic(resource: str) -> str:
    return f"rate/{resource}"


def server_topic(resource: str, server: str) -> str:
    return f"rate/{resource}/{server}"


def find_nodes(world: World) -> list[str]:
    """Whoever may lead: this node, and all others that are known."""
    return list(dict.fromkeys([world.name, *world.network.peers(), *world.fleet.nodes()]))


FindNodes = Callable[[World], list[str]]


def _nothing() -> None: ...


def _hear_nothing(sender: str, message: Message) -> None: ...


class ServerCourier:
    """Answers controllers in the name of one server, and keeps its journal, if it has one. `asked` is
    called before it reports what it has seen, `changed` after its tokens did."""

    def __init__(
        self,
        world: World,
        resource: str,
        book: ServerBook,
        changed: Callable[[], None],
        asked: Callable[[], None] = _nothing,
        *,
        compact_bytes: int = COMPACT_BYTES,
        find_nodes: FindNodes = find_nodes,
    ) -> None:
        self._world = world
        self._resource = resource
        self._book = book
        self._changed = changed
        self._asked = asked
        self._compact_bytes = compact_bytes
        self._find_nodes = find_nodes
        self._is_known = False
        self._has_told_wanted = False
        self._sync_wanted = asyncio.Event()

    def start(self) -> None:
        topic = server_topic(self._resource, self._book.name)
        if self._book.blocks is not None:
            self._start_journal(self._book.blocks, topic)
        self._world.network.serve(topic, ToServer, self._receive)
        self._world.spawn(self._announce(), f"{topic}.announce")

    def leave(self) -> None:
        """The server goes: it dispatches nothing from here on, and everybody is told what it did."""
        self._is_known = True
        left = self._book.leave(self._world.clock.now())
        for controller in self._find_nodes(self._world):
            self._world.network.send(controller, controller_topic(self._resource), left)
        self._world.trace("rate.left", resource=self._resource, server=self._book.name)

    def tell_wanted(self) -> None:
        """A tenant begins to ask that has no tokens here. That is said once until the leader asks, because
        whoever begins meanwhile is in that report. If the word is lost, the next round sees it."""
        leader = self._book.leader
        if leader is not None and not self._has_told_wanted:
            self._has_told_wanted = True
            message = Wanted(self._book.name)
            self._world.network.send(leader, controller_topic(self._resource), message)

    def _start_journal(self, blocks: Blocks, topic: str) -> None:
        journal = self._world.journal(topic)
        blocks.wake = self._sync_wanted.set
        blocks.replay(journal.replay())
        self._world.spawn(self._sync_blocks(blocks, journal), f"{topic}.sync")

    async def _sync_blocks(self, blocks: Blocks, journal: Journal) -> None:
        """Write what the book states, many lines at a time, and tell it when they are durable."""
        lines, size = 0, 0
        while True:
            await self._sync_wanted.wait()
            self._sync_wanted.clear()
            written, blocks.unwritten = blocks.unwritten, []
            lines += len(written)
            size += sum(map(len, written))
            if size > self._compact_bytes:
                size = 0
                await journal.rewrite(blocks.compact())
            else:
                for line in written:
                    journal.append(line)
                await journal.sync()
            self._book.synced(lines)
            self._changed()

    async def _announce(self) -> None:
        """Until a leader asks. Whoever leads would ask with its next round, which in a long period is
        far away."""
        pause_ns = ANNOUNCE_NS
        while not self._is_known:
            for controller in self._find_nodes(self._world):
                message = Started(self._book.name)
                self._world.network.send(controller, controller_topic(self._resource), message)
            await self._world.clock.sleep(pause_ns)
            pause_ns = min(2 * pause_ns, ANNOUNCE_MAX_NS)

    async def _receive(self, sender: str, message: Message) -> None:
        self._is_known = True
        if isinstance(message, Poll):
            self._has_told_wanted = False
            self._asked()
        for effect in self._book.receive(self._world.clock.now(), sender, message):
            if isinstance(effect, Send):
                self._world.network.send(effect.to, controller_topic(self._resource), effect.message)
        if isinstance(message, Grant):  # a report must not wait for requests that go
            self._changed()


class ControllerCourier:
    """Stands for election, and while elected runs the book. `hosts` says on which node each
    server runs (a server that is not listed runs on the node of its own name), `interval_ns` how often
    a leader is heard."""

    def __init__(
        self, world: World, resource: str, book: ControllerBook, find_nodes: FindNodes = find_nodes
    ) -> None:
        """`heard` is told of every message before the book is, `performed` after the book did something."""
        self._find_nodes = find_nodes
        self.heard: Callable[[str, Message], None] = _hear_nothing
        self.performed: Callable[[], None] = _nothing
        self._world = world
        self._resource = resource
        self._book = book
        self.hosts: Mapping[str, str] = {}
        self.rounds = Rounds()
        self.interval_ns = book.interval_ns
        self._candidacy = Candidacy()
        self._beats = 0
        self._committing_beats = 0
        self._root = f"/rates/{resource}"
        self._commits: asyncio.Queue[tuple[State, int, Sequence[Check]]] = asyncio.Queue()
        self._version = 0
        self._barred: Sequence[Check] = ()
        self._standing: Task | None = None
        self._ended = asyncio.Event()
        self._lost = asyncio.Event()
        self._alarm = Alarm(world, f"rate/{resource}/controller", book.wake_at, self._tick)

    def start(self) -> None:
        self._world.network.serve(controller_topic(self._resource), ToController, self._receive)
        self._standing = self._world.spawn(self._stand(), f"rate/{self._resource}/election")
        self._world.spawn(self._commit_states(), f"rate/{self._resource}/commits")
        self._world.spawn(self._beat(), f"rate/{self._resource}/beats")
        self._world.spawn(self._miss(), f"rate/{self._resource}/missing")
        self._world.network.observe(self._hear_connection)
        self._alarm.start()

    async def resign(self) -> None:
        """Lead no more, and let another: at once, not when this node's session ends."""
        if self._standing is not None:
            self._standing.cancel()
        self._book.deposed()
        try:
            if await self._holds_leader_node():
                await self._world.store.delete(f"{self._root}/leader")
        except StoreError as error:
            self._world.trace("rate.resigned_in_silence", resource=self._resource, why=str(error)[:200])

    def perform(self, effects: Sequence[Send | Commit]) -> None:
        self.rounds.send(self._world.clock.now(), effects)
        for effect in effects:
            match effect:
                case Send(server, message):
                    host = self.hosts.get(server, server)
                    self._world.network.send(host, server_topic(self._resource, server), message)
                case Commit(state):
                    # The guards of this moment: the state was made by the terms that they stand for.
                    self._commits.put_nowait((state, self._version, self._world.fleet.guards()))
        self._alarm.set()
        self.performed()

    async def _receive(self, sender: str, message: Message) -> None:
        if isinstance(message, Leading | Missing | Hearing):
            self._hear_candidate(sender, message)
            return
        self.heard(sender, message)
        led = self._book.leading
        now = self._world.clock.now()
        effects = self._book.receive(now, sender, message)
        if led:
            self.rounds.hear(now, message, self._world.clock.now() - now)
        self.perform(effects)
        if led and not self._book.leading:
            self._ended.set()

    def _tick(self, now: int) -> None:
        effects = self._book.tick(now)
        self.rounds.compute(self._world.clock.now() - now)
        self.perform(effects)

    # -- beats ------------------------------------------------------------------------------

    def _tell(self, message: Message) -> None:
        """Every other node: each may come to lead."""
        for node in self._find_nodes(self._world):
            if node != self._world.name:
                self._world.network.send(node, controller_topic(self._resource), message)

    async def _beat(self) -> None:
        while True:
            await self._world.clock.sleep(min(self.interval_ns, BEAT_MAX_NS))
            if self._book.leading:
                self._tell_leading()
            elif self._candidacy.beat():
                self._tell(Missing(self._candidacy.epoch))
            elif self._candidacy.should_lead(self._find_others()):
                await self._unseat()

    def _hear_connection(self, peer: str, connected: bool) -> None:
        if not connected and not self._book.leading and self._candidacy.lose(peer):
            self._lost.set()

    async def _miss(self) -> None:
        """Where the leader's connection is gone the leader most likely is, too."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            await self._world.clock.sleep(LOST_NS)
            if self._candidacy.miss():
                self._tell(Missing(self._candidacy.epoch))
                await self._world.clock.sleep(ANSWERS_NS)
                if self._candidacy.should_lead(self._find_others()):
                    await self._unseat()

    def _tell_leading(self) -> None:
        """Unless the store does not take what this leader has to write: then another may do better."""
        self._beats += 1
        self._committing_beats = 0 if self._book.committing is None else self._committing_beats + 1
        if self._committing_beats <= STUCK_BEATS:
            self._tell(Leading(self._book.state.epoch))

    def _find_others(self) -> list[str]:
        out = (self._world.name, self._candidacy.leader)
        return [node for node in self._find_nodes(self._world) if node not in out]

    def _hear_candidate(self, sender: str, message: Leading | Missing | Hearing) -> None:
        match message:
            case Leading(epoch=epoch):
                self._candidacy.hear(epoch, sender)
            case Hearing(epoch=epoch, heard=heard):
                self._candidacy.hear_answer(epoch, heard)
            case Missing(epoch=epoch):
                leads = self._book.leading and self._book.state.epoch >= epoch
                answer = Hearing(epoch, leads or self._candidacy.answer(epoch))
                self._world.network.send(sender, controller_topic(self._resource), answer)

    async def _unseat(self) -> None:
        """Take away the leader node of a leader that is heard no more, if it leads still by the store: then
        the election, which waits for that, goes on. Where this fails the session's end does the same."""
        try:
            stored, version = await self._read_state()
            if stored.epoch == self._candidacy.epoch and not self._book.leading:
                self._world.trace("rate.unseated", resource=self._resource, leader=stored.leader)
                check = Check(f"{self._root}/state", version)
                await self._world.store.transact([check, Delete(f"{self._root}/leader")])
            self._candidacy.lead()
        except NodeMissingError:
            self._candidacy.lead()
        except StoreError as error:
            self._world.trace("rate.not_unseated", resource=self._resource, why=str(error)[:200])

    # -- election ---------------------------------------------------------------------------

    async def _stand(self) -> None:
        """Hold the ephemeral leader node, or wait until nobody does. Safety does not rest on it:
        two nodes that both believe they hold it are told apart by the state's epoch."""
        while True:
            await self._follow_terms()
            session = self._world.store.session
            try:
                if await self._elected():
                    self._ended.clear()
                    stored, self._version = await self._read_state()
                    self._world.trace("rate.leading", resource=self._resource, after=stored.leader or None)
                    self._candidacy.lead()
                    self._beats = self._committing_beats = 0
                    self.perform(self._book.lead(stored))
                    await self._keep_leading()
                    self._candidacy.deposed(self._beats)
            except SessionExpiredError:
                self._book.deposed()
                await renew(self._world, session)
            except StoreUnknownError:
                self._book.deposed()
                await self._world.clock.sleep(RETRY_NS)

    async def _follow_terms(self) -> None:
        """A node that found newer terms in the store than it runs does not stand before it runs others, and
        one that has not entered its fleet does not know whom it would lead."""
        while self._is_outside() or (self._barred and self._world.fleet.guards() == self._barred):
            await self._world.clock.sleep(RETRY_NS)
        self._barred = ()

    def _is_outside(self) -> bool:
        fleet = self._world.fleet
        return bool(fleet.guards()) and self._world.name not in fleet.nodes()

    async def _elected(self) -> bool:
        """True once this node holds the leader node; False after waiting for another to let go."""
        store = self._world.store
        path = f"{self._root}/leader"
        await store.ensure(self._root)
        watch = await store.watch(path)
        try:
            await store.create(path, self._world.name.encode(), ephemeral=True)
            return True
        except NodeExistsError:
            stat = await store.exists(path)
            if stat is not None and stat.owner == store.session:
                return True
            if stat is not None:
                await watch.changed()
            return False
        finally:
            watch.close()

    async def _read_state(self) -> tuple[State, int]:
        """The state and its version, made if there was none."""
        store = self._world.store
        path = f"{self._root}/state"
        await store.sync()
        try:
            data, stat = await store.get(path)
        except NodeMissingError:
            try:
                await store.create(path, _encode(NO_STATE))
            except NodeExistsError:
                self._world.trace("rate.state.made_by_another", resource=self._resource)
            data, stat = await store.get(path)
        return read_state(data), stat.version

    async def _keep_leading(self) -> None:
        """Until the book was deposed or the leader node is no longer this session's."""
        watcher = self._world.spawn(self._watch_leader(), f"rate/{self._resource}/leader")
        await self._ended.wait()
        watcher.cancel()
        self._book.deposed()
        self._world.trace("rate.deposed", resource=self._resource)
        if await self._holds_leader_node():
            try:
                await self._world.store.delete(f"{self._root}/leader")
            except NodeMissingError:
                return

    async def _watch_leader(self) -> None:
        while True:
            try:
                watch = await self._world.store.watch(f"{self._root}/leader")
                while await self._holds_leader_node():
                    await watch.changed()
                self._ended.set()
                return
            except SessionExpiredError:
                self._ended.set()
                return
            except StoreUnknownError:
                await self._world.clock.sleep(RETRY_NS)

    async def _holds_leader_node(self) -> bool:
        stat = await self._world.store.exists(f"{self._root}/leader")
        return stat is not None and stat.owner == self._world.store.session

    # -- the state --------------------------------------------------------------------------

    async def _commit_states(self) -> None:
        while True:
            state, version, guards = await self._commits.get()
            while self._book.wants(state) and not await self._tried(state, version, guards):
                await self._world.clock.sleep(RETRY_NS)

    async def _tried(self, state: State, version: int, guards: Sequence[Check]) -> bool:
        """Compare-and-set once, and tell the book. False if the outcome is still open. The version
        is the one that the state was made from: a later one would overwrite a successor's. The guards
        hold only while this node runs the terms that are in force."""
        write = Set(f"{self._root}/state", _encode(state), version)
        try:
            *_, stat = await self._world.store.transact([*guards, write])
        except (VersionError, NodeMissingError) as error:
            if error.position is not None and error.position < len(guards):
                self._bar(state, guards)
                return True
            return await self._settled(state)
        except SessionExpiredError:
            self._depose(state)
            return True
        except StoreUnknownError:
            return False
        assert isinstance(stat, Stat), "a set answers with one"
        self._committed(state, stat.version)
        return True

    def _bar(self, state: State, guards: Sequence[Check]) -> None:
        """Newer terms are in force than this node runs: it is not for this node to lead."""
        if self._book.wants(state):
            self._barred = guards
            self._world.trace("rate.barred", resource=self._resource, epoch=state.epoch, period=state.period)
            self._depose(state)

    async def _settled(self, state: State) -> bool:
        """The version moved: by this node, in a try whose answer was lost, or by another."""
        try:
            stored, version = await self._read_state()
        except StoreUnknownError:
            return False
        except SessionExpiredError:
            self._depose(state)
            return True
        if stored == state:
            self._committed(state, version)
        else:
            self._depose(state)
        return True

    def _committed(self, state: State, version: int) -> None:
        if not self._book.wants(state):
            return
        self._version = version
        began = not self._book.leading
        self._world.trace("rate.state", resource=self._resource, epoch=state.epoch, period=state.period)
        self.perform(self._book.committed(self._world.clock.now(), state))
        if began and self._book.leading:
            self._tell_leading()

    def _depose(self, state: State) -> None:
        if self._book.wants(state):
            self._book.deposed()
            self._ended.set()
