"""Every order of events of a rate, with two servers and two tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bursar.book import Book, Effects, Send
from bursar.rates.controller import Commit, ControllerBook
from bursar.rates.messages import UNBOUNDED, State
from bursar.rates.scheduler import Whole
from bursar.rates.server import ServerBook
from bursar.rates.terms import Terms
from bursar.rates.views import Listed, Picture, Place
from bursar.sim.scenario import require
from bursar.sim.search import Budget, Move, SmallWorld
from bursar.sim.search import State as SearchState
from bursar.world import MILLISECOND_NS, Message

DRIFT_PPM = 10_000
LIMIT = 2
TERMS = {"a": Terms(0, LIMIT)}
SMALL_PERIOD_NS = 400 * MILLISECOND_NS
SMALL_INTERVAL_NS = 100 * MILLISECOND_NS


def find_terms(tenant: str) -> Terms | None:
    return TERMS.get(tenant)


class Propose(Message, frozen=True):
    """Controller to store: make this the state, if the version is still that one."""

    version: int
    state: State


class Stored(Message, frozen=True):
    """Store to controller: this is the state now."""

    version: int
    state: State


READ_ONLY = -1
"""As a version: no state has it, so the proposal only asks what is stored."""


class StoreBook:
    """The one node of the store that matters: compare-and-set, and an answer either way."""

    def __init__(self) -> None:
        self.version = 0
        self.state = State(0, "", 0, ())

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        assert isinstance(message, Propose)
        if message.version == self.version:
            self.version += 1
            self.state = message.state
        return [Send(sender, Stored(self.version, self.state))]

    def synced(self, now: int, records: int) -> Effects:
        return []

    def tick(self, now: int) -> Effects:
        return []

    def wake_at(self) -> int | None:
        return None

    def replay(self, records: Iterable[bytes]) -> None:
        return None


class ControllerNode(StoreBook):
    """A controller's book with its half of the store's conversation, as its courier has it."""

    def __init__(self, book: ControllerBook, elected_at: int) -> None:
        super().__init__()
        self.book = book
        self._elected_at: int | None = elected_at
        self._electing = False

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        if not isinstance(message, Stored):
            return self._perform(self.book.receive(now, sender, message))
        self.version, self.state = message.version, message.state
        if self._electing:
            self._electing = False
            return self._perform(self.book.lead(self.state))
        waits = self.book.committing
        if waits is None:
            return []
        if waits != message.state:
            self.book.deposed()
            return []
        return self._perform(self.book.committed(now, waits))

    def _perform(self, effects: Iterable[Send | Commit]) -> Effects:
        sent: Effects = []
        for effect in effects:
            if isinstance(effect, Commit):
                sent.append(Send("store", Propose(self.version, effect.state)))
            else:
                sent.append(effect)
        return sent

    def tick(self, now: int) -> Effects:
        if self._elected_at is not None and now >= self._elected_at:
            self._elected_at = None
            self._electing = True
            return [Send("store", Propose(READ_ONLY, self.state))]
        return self._perform(self.book.tick(now))

    def wake_at(self) -> int | None:
        return self._elected_at if self._elected_at is not None else self.book.wake_at()


class Tokens:
    """The scheduler's counts without its queues: what the server's book needs of it."""

    def __init__(self, tenants: int) -> None:
        self.allowance = [0] * tenants
        self.priority = [0] * tenants
        self.dispatched = [0] * tenants
        self.pending = [1] * tenants
        self.ceiling = [UNBOUNDED] * tenants

    def open_period(self, now: int) -> None:
        for counts in (self.allowance, self.priority, self.dispatched):
            counts[:] = [0] * len(counts)
        self.ceiling = [UNBOUNDED] * len(self.ceiling)

    def cap(self, tenant: int, ceiling: int) -> None:
        self.ceiling[tenant] = ceiling

    def cap_many(self, ceilings: Sequence[int]) -> None:
        self.ceiling = list(ceilings)

    def add(self, weight: int) -> int:
        for counts in (self.allowance, self.priority, self.dispatched):
            counts.append(0)
        self.pending.append(1)
        self.ceiling.append(UNBOUNDED)
        return len(self.allowance) - 1

    def spend(self, tenant: int, tokens: int) -> None:
        self.dispatched[tenant] += tokens

    def front_cost(self, tenant: int) -> int:
        return 1

    def read_allowance(self, tenant: int) -> int:
        return self.allowance[tenant]

    def read_dispatched(self, tenant: int) -> int:
        return self.dispatched[tenant]

    def grant(
        self, tenant: int, allowance: int, priority: int = 0, pace: int = 0, now: int | None = None
    ) -> None:
        self.allowance[tenant], self.priority[tenant] = allowance, priority

    def grant_many(self, tenants: Whole, allowance: Whole, priority: Whole, pace: Whole, now: int) -> None:
        self.allowance, self.priority = allowance.tolist(), priority.tolist()


class ServerNode(StoreBook):
    """A server's book as a node of the search."""

    def __init__(self, book: ServerBook) -> None:
        super().__init__()
        self.book = book

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        return self.book.receive(now, sender, message)

    def tick(self, now: int) -> Effects:
        self.book.begin_next(now)
        return []

    def wake_at(self) -> int | None:
        """Somebody always waits: the next period is begun as soon as it may be."""
        return self.book.grace.find_start(self.book.expires_at)

    @property
    def allowance(self) -> int:
        """What may be, or was, dispatched for the tenant, whether it ever asked here or not."""
        tokens = self.book.scheduler
        if self.book.index("a") is None:
            return self.book.find_held("a")
        return int(tokens.dispatched[0] if self.book.left else tokens.allowance[0])

    @property
    def dispatched(self) -> int:
        return 0 if self.book.index("a") is None else int(self.book.scheduler.dispatched[0])


def place_when_asked(picture: Picture) -> Listed:
    """The same, once anybody has asked for it."""
    return place_in_turns(picture) if picture.is_named("a") else {}


def place_in_turns(picture: Picture) -> Listed:
    """All of it on one server, then all of it on the other: as much moving as there can be."""
    names = [view.name for view in picture.servers]
    turn = picture.time_left_ns // SMALL_INTERVAL_NS % max(1, len(names))
    return {name: {"a": (LIMIT if index == turn else 0, 0, 0)} for index, name in enumerate(names)}


class SmallRate(SmallWorld):
    """Two servers, and a controller that has opened a period and placed its tokens. The search
    begins there, just before the tokens are moved from one server to the other."""

    horizon_ns = 80 * MILLISECOND_NS
    flight_max = 5
    budget = Budget(crashes=0, duplicates=1, drops=1, moves=1)
    drift_ppm = MappingProxyType({"c1": DRIFT_PPM, "c2": DRIFT_PPM, "s1": -DRIFT_PPM, "s2": -DRIFT_PPM})
    stable = frozenset({"store", "c1", "c2"})
    server_book: type[ServerBook] = ServerBook
    controller_book: type[ControllerBook] = ControllerBook
    place: Place = staticmethod(place_in_turns)
    before_ms: tuple[int, ...] = (-75, -50)
    standby_elected_at: int | None = None
    leader_gone: bool = False

    def nodes(self) -> Mapping[str, Callable[[int], Book]]:
        books: dict[str, Any] = {
            "store": StoreBook(),
            "c1": self._controller("c1", self.before_ms[0] * MILLISECOND_NS),
        }
        if self.standby_elected_at is not None:
            books["c2"] = self._controller("c2", self.standby_elected_at)
        books.update(s1=self._server("s1", 1), s2=self._server("s2", 1))
        for moment_ms in self.before_ms:
            _settle(books, moment_ms * MILLISECOND_NS)
        if self.leader_gone:
            books["c1"] = StoreBook()
        return {name: self._maker(name, book) for name, book in books.items()}

    def _maker(self, name: str, first: Any) -> Callable[[int], Book]:
        return lambda life: first if life == 1 else self._server(name, life)

    def _server(self, name: str, life: int) -> ServerNode:
        tokens: Any = Tokens(1)
        book = self.server_book(name, life, ["a"], tokens, period_ns=SMALL_PERIOD_NS)
        return ServerNode(self._promise(book))

    def _promise(self, book: ServerBook) -> ServerBook:
        """Somebody always waits."""
        book.observed.queued = [1] * len(book.tenants)
        book.set_terms(find_terms, "")
        return book

    def _controller(self, name: str, elected_at: int) -> ControllerNode:
        book = self.controller_book(
            name,
            ("s1", "s2"),
            TERMS,
            self.place,
            period_ns=SMALL_PERIOD_NS,
            interval_ns=SMALL_INTERVAL_NS,
            drift_ppm=DRIFT_PPM,
        )
        return ControllerNode(book, elected_at)

    def moves(self, name: str, book: Any, now_ns: int) -> Iterable[Move]:
        if isinstance(book, ServerNode) and book.book.may_dispatch(now_ns):
            tokens = book.book.scheduler
            if tokens.dispatched[0] < tokens.allowance[0]:
                yield Move("dispatches", _dispatch)

    def crashed(self, name: str, book: Any, ground: Any) -> Any:
        """What a life of a server was allowed dies with it, and counts."""
        held = (book.book.period, book.allowance)
        return (*ground, held) if held[1] else ground

    def check(self, state: SearchState) -> None:
        out: dict[int, int] = {}
        opened = 0
        for node in state.nodes:
            if isinstance(node.book, ControllerNode) and node.book.book.leading:
                opened = max(opened, node.book.book.state.period)
            elif isinstance(node.book, ServerNode) and node.book.book.grace.unheard:
                opened = max(opened, node.book.book.period)
        for position, node in enumerate(state.nodes):
            if isinstance(node.book, ServerNode):
                book = node.book.book
                out[book.period] = out.get(book.period, 0) + node.book.allowance
                left = node.book.allowance - node.book.dispatched
                late = left > 0 and book.period < opened and book.may_dispatch(self.local_ns(state, position))
                require(not late, f"{book.name} can serve period {book.period} after {opened} had begun")
        for period, allowance in state.ground:
            out[period] = out.get(period, 0) + allowance
        for period, allowance in out.items():
            require(
                allowance <= LIMIT, f"{allowance} tokens of period {period} are out, the limit is {LIMIT}"
            )


class SmallCrash(SmallRate):
    """A server loses its memory while its tokens are moved."""

    budget = Budget(crashes=1, duplicates=0, drops=0, moves=0)


class SmallTakeOver(SmallRate):
    """The second controller is elected while the first still leads."""

    horizon_ns = 60 * MILLISECOND_NS
    budget = Budget(crashes=0, duplicates=0, drops=0, moves=0)
    standby_elected_at = 10 * MILLISECOND_NS


class SmallNextPeriod(SmallRate):
    """The next period opens, by the fastest clock, while servers go by the slowest."""

    horizon_ns = 170 * MILLISECOND_NS
    flight_max = 2
    before_ms = (-275, -250, -150, -50)
    budget = Budget(crashes=0, duplicates=0, drops=0, moves=0)


class SmallUnseen(SmallRate):
    """Nobody has asked for the tenant yet. Each server has a part of its limit, and anybody may ask at any
    time, at one server or at both."""

    budget = Budget(crashes=0, duplicates=0, drops=1, moves=3)
    place = staticmethod(place_when_asked)

    def _server(self, name: str, life: int) -> ServerNode:
        tokens: Any = Tokens(0)
        book = self.server_book(name, life, (), tokens, period_ns=SMALL_PERIOD_NS)
        return ServerNode(self._promise(book))

    def moves(self, name: str, book: Any, now_ns: int) -> Iterable[Move]:
        if isinstance(book, ServerNode) and book.book.index("a") is None:
            yield Move("asks", _ask)
        else:
            yield from super().moves(name, book, now_ns)


class SmallUnseenCrash(SmallUnseen):
    """A server that has a part, asked for or not, loses its memory."""

    horizon_ns = 60 * MILLISECOND_NS
    flight_max = 4
    budget = Budget(crashes=1, duplicates=0, drops=0, moves=2)


class SmallUnseenTakeOver(SmallUnseen):
    """Another leader takes over, who knows of the parts by the servers' reports alone."""

    horizon_ns = 60 * MILLISECOND_NS
    budget = Budget(crashes=0, duplicates=0, drops=0, moves=2)
    standby_elected_at = 10 * MILLISECOND_NS


class SmallLeaving(SmallRate):
    """A server leaves, after it dispatched something or before, while its tokens are moved."""

    budget = Budget(crashes=0, duplicates=0, drops=1, moves=2)
    controllers: tuple[str, ...] = ("c1",)

    def moves(self, name: str, book: Any, now_ns: int) -> Iterable[Move]:
        if name == "s1" and not book.book.left:
            yield Move("leaves", self._leave)
            yield from super().moves(name, book, now_ns)

    def _leave(self, node: ServerNode, now_ns: int, ground: Any) -> tuple[Effects, Any]:
        left = node.book.leave(now_ns)
        return [Send(controller, left) for controller in self.controllers], ground


class SmallLeavingTakeOver(SmallLeaving):
    """A server leaves while the lead goes over."""

    horizon_ns = 40 * MILLISECOND_NS
    flight_max = 4
    budget = Budget(crashes=0, duplicates=0, drops=0, moves=2)
    standby_elected_at = 10 * MILLISECOND_NS
    controllers = ("c1", "c2")


SMALL_WORLDS = (
    SmallRate,
    SmallCrash,
    SmallTakeOver,
    SmallNextPeriod,
    SmallUnseen,
    SmallUnseenCrash,
    SmallUnseenTakeOver,
    SmallLeaving,
    SmallLeavingTakeOver,
)


def _settle(books: Mapping[str, Any], now: int) -> None:
    """Let everything happen that is due, in order, until nothing is."""
    flying = [(name, effect) for name, book in books.items() for effect in _due(book, now)]
    while flying:
        sender, effect = flying.pop(0)
        assert isinstance(effect, Send), "these books keep no journal"
        flying += [(effect.to, sent) for sent in books[effect.to].receive(now, sender, effect.message)]


def _due(book: Any, now: int) -> Effects:
    wake_at = book.wake_at()
    effects: Effects = book.tick(now) if wake_at is not None and wake_at <= now else []
    return effects


def _ask(node: ServerNode, now_ns: int, ground: Any) -> tuple[Effects, Any]:
    node.book.add_tenant(now_ns, "a", TERMS["a"])
    node.book.observed.queued[-1] = 1
    return [], ground


def _dispatch(node: ServerNode, now_ns: int, ground: Any) -> tuple[Effects, Any]:
    node.book.scheduler.dispatched[0] += 1
    return [], ground
