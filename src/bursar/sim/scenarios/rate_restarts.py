"""A rate with a long period whose servers are killed again and again, and go on by their journals.

Some lives keep no journal, as if the policy had been another one then; lines that were not synced are
lost; some restarts are the machine's, and its clock begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bursar.book import Effects, Record
from bursar.policy.values import RatePolicy
from bursar.rates.blocks import Blocks
from bursar.rates.server import ServerBook
from bursar.sim.faults import Faults
from bursar.sim.scenario import require
from bursar.sim.scenarios.rate.policies import SERVERS
from bursar.sim.scenarios.rate.small import LIMIT, SMALL_PERIOD_NS, ServerNode, SmallRate, Tokens
from bursar.sim.scenarios.rate.world import RateScenario
from bursar.sim.search import Budget, Move
from bursar.sim.search import State as SearchState
from bursar.world import MILLISECOND_NS, SECOND_NS, World

STEP_NS = 20 * MILLISECOND_NS
JOURNALLED = 0.85
"""The part of all lives that keep a journal."""


class RestartingRateScenario(RateScenario):
    """Several restarts in a period, and the truth is still what was served in it."""

    duration_ns = 8 * SECOND_NS
    settle_ns = 10 * SECOND_NS
    fixed: Mapping[str, Any] = {"period": "1200ms", "interval": "300ms", "drift_ppm": 10_000}
    compact_bytes = 300
    blocks: type[Blocks] = Blocks

    def __init__(self) -> None:
        super().__init__()
        self.resumed = 0
        self._calm = False

    def faults(self) -> Faults:
        often = {"crashes": 2.0, "disk_slow": 0.3, "disk_errors": 0.01}
        everything = Faults.everything()
        chosen = {name: often.get(name, getattr(everything, name)) for name in Faults.__slots__}
        return Faults(**{**chosen, "outage_ns": 100 * MILLISECOND_NS})

    def make_blocks(self, world: World, policy: RatePolicy) -> Blocks | None:
        if not self._calm and world.random.random() > JOURNALLED:
            return None
        return self.blocks(
            world.incarnation,
            period_ns=policy.period_ns,
            origin=world.clock.origin(),
            step_ns=STEP_NS,
            step_min=1,
        )

    def healed(self) -> None:
        self._calm = True

    def crashed(self, name: str) -> None:
        # Not for any check: a campaign in which nothing is ever resumed would prove nothing.
        if name in SERVERS and name in self.deciders:
            books = [server.book for server in self.deciders[name].servers.values()]
            self.resumed += sum(book.granted and bool(book._lives) for book in books)
        super().crashed(name)


class JournalledNode(ServerNode):
    """A server's book with its lines, as its courier has them. What it writes before the search begins
    is handed over when it does, none of it durable."""

    def __init__(self, book: ServerBook) -> None:
        super().__init__(book)
        self._searched = False

    def receive(self, now: int, sender: str, message: Any) -> Effects:
        return [*super().receive(now, sender, message), *self._lines()]

    def synced(self, now: int, records: int) -> Effects:
        self.book.synced(records)
        return self._lines()

    def replay(self, records: Iterable[bytes]) -> None:
        assert self.book.blocks is not None, "made with them"
        self._searched = True
        if not self.book.granted:
            self.book.blocks.replay(records)

    def tick(self, now: int) -> Effects:
        return self._lines()

    def _lines(self) -> Effects:
        blocks = self.book.blocks
        assert blocks is not None, "made with them"
        if not self._searched:
            return []
        lines, blocks.unwritten = blocks.unwritten, []
        return [Record(line) for line in lines]

    def dispatch(self) -> Effects:
        self.book.reach(0, 1)
        tokens = self.book.scheduler
        if tokens.dispatched[0] < min(tokens.allowance[0], tokens.ceiling[0]):  # type: ignore[attr-defined]
            tokens.dispatched[0] += 1
        return self._lines()


class SmallRestart(SmallRate):
    """A server with a journal is killed while its tokens are moved; it may dispatch at any time."""

    budget = Budget(crashes=1, duplicates=0, drops=0, moves=2)
    horizon_ns = 60 * MILLISECOND_NS
    flight_max = 4
    blocks: type[Blocks] = Blocks

    def _server(self, name: str, life: int) -> ServerNode:
        tokens: Any = Tokens(1)
        blocks = self.blocks(life, ["a"], period_ns=SMALL_PERIOD_NS, origin="", step_ns=0, step_min=1)
        node = JournalledNode(self._promise(self.server_book(name, life, ["a"], tokens, blocks)))
        if life == 1:
            blocks.replay(())
        return node

    def moves(self, name: str, book: Any, now_ns: int) -> Iterable[Move]:
        if isinstance(book, JournalledNode) and book.book.may_dispatch(now_ns):
            tokens = book.book.scheduler
            if tokens.dispatched[0] < tokens.allowance[0]:
                yield Move("dispatches", _dispatch)

    def crashed(self, name: str, book: Any, ground: Any) -> Any:
        """What was dispatched is known to the ground already."""
        return ground

    def check(self, state: SearchState) -> None:
        out: dict[int, int] = {}
        for period in state.ground:
            out[period] = out.get(period, 0) + 1
        for node in state.nodes:
            if isinstance(node.book, JournalledNode):
                book = node.book.book
                left = book.scheduler.allowance[0] - book.scheduler.dispatched[0]
                out[book.period] = out.get(book.period, 0) + int(left)
        for period, tokens in out.items():
            require(tokens <= LIMIT, f"{tokens} tokens of period {period} are out, the limit is {LIMIT}")


def _dispatch(node: JournalledNode, now_ns: int, ground: Any) -> tuple[Effects, Any]:
    before = int(node.book.scheduler.dispatched[0])
    effects = node.dispatch()
    went = int(node.book.scheduler.dispatched[0]) > before
    return effects, (*ground, node.book.period) if went else ground


SCENARIO = RestartingRateScenario
SMALL_WORLD = SmallRestart
