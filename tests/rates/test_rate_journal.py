"""A server that journals what it charges: no request and no lot goes before that is durable, and while
the disk keeps up nobody waits for it."""

from __future__ import annotations

from virtual import run

from bursar.errors import Refused
from bursar.rates.blocks import Blocks
from bursar.rates.choices import decide_among, withdraw
from bursar.rates.columns import make_allowances
from bursar.rates.dispatcher import Dispatcher
from bursar.rates.messages import Allowance, Grant
from bursar.rates.promises import Promises
from bursar.rates.refusals import DISK_NS
from bursar.rates.scheduler import Scheduler
from bursar.rates.server import ServerBook
from bursar.rates.terms import Terms
from bursar.resource import Ahead, Granted, Ticket
from bursar.world import SECOND_NS, World

PERIOD_NS = 60 * SECOND_NS
LIMIT = 1200
STEP = 10
"""What the tenant spends in half a second."""


class Server:
    """Its queues and its book, and a disk that writes when it is told to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.blocks = Blocks(world.incarnation, ["a"], period_ns=PERIOD_NS, origin="boot")
        self.blocks.replay(())
        book = ServerBook("s", world.incarnation, ["a"], Scheduler([1]), self.blocks)
        promises = Promises(PERIOD_NS)
        self.queues = Dispatcher(
            world, book, period_ns=PERIOD_NS, capacity=1_000_000.0, promises=promises, ahead=Ahead()
        )
        index = promises.set("a", Terms(0, LIMIT, 1, 60), whole=True)
        self.queues.set_terms("a", promises.terms(index), promises.burst_ns(index))
        self.queues.start()
        self._lines = 0

    def grant(self, period: int = 1) -> None:
        now, book = self.world.clock.now(), self.queues.book
        message = Grant(
            1,
            book.sequence + 1,
            book.incarnation,
            period,
            now,
            PERIOD_NS,
            make_allowances([Allowance("a", LIMIT, 0)]),
        )
        assert book.receive(now, "c", message)
        self.queues.pump()

    def write(self) -> int:
        """How many lines became durable."""
        written, self.blocks.unwritten = len(self.blocks.unwritten), []
        self._lines += written
        self.queues.book.synced(self._lines)
        self.queues.pump()
        return written

    def ask(self, amount: int = 1, *, ahead: int = 0, wait_ns: int = 0) -> Ticket:
        ticket = Ticket("a", amount, wait_ns=wait_ns, ahead=ahead)
        decide_among((self.queues,), ticket)
        return ticket

    def take(self, amount: int = 1, *, ahead: int = 0) -> Granted:
        answer = self.ask(amount, ahead=ahead).answer
        assert isinstance(answer, Granted)
        return answer


def test_a_lot_is_written_before_it_is_handed_out() -> None:
    async def body(world: World) -> None:
        server = Server(world)
        server.grant()
        early = server.ask(ahead=50)
        assert early.answer is None and server.queues.used(0) == 0
        server.write()
        assert isinstance(early.answer, Granted)
        assert server.take(ahead=50).ahead == STEP - 2, "up to what is durable, and a step of it at once"
        assert server.take(ahead=50).ahead == STEP - 1
        last = server.ask(ahead=50)
        assert last.answer is None, "the next step is being written"
        assert server.queues.used(0) == 2 * STEP
        server.write()
        assert isinstance(last.answer, Granted)

    run(body)


def test_while_the_disk_keeps_up_nobody_waits_for_it() -> None:
    async def body(world: World) -> None:
        server = Server(world)
        server.grant()
        server.write()
        writes = 0
        for _ in range(LIMIT):
            server.take()
            writes += server.write()
        assert writes < 2 * LIMIT // STEP
        assert isinstance(server.ask().answer, Refused), "the limit is used up to the last token"

    run(body)


def test_what_comes_back_goes_again_and_no_line_more_is_written_for_it() -> None:
    async def body(world: World) -> None:
        server = Server(world)
        server.grant()
        server.write()
        granted = server.take(ahead=50)
        server.write()
        server.queues.take_back(granted.data, granted.ahead)
        assert server.queues.used(0) == 1
        for _ in range(STEP - 1):
            server.take()
        assert server.write() == 0
        assert server.queues.used(0) == STEP

    run(body)


def test_who_wants_no_wait_is_not_told_of_the_disk_unless_it_is_slow() -> None:
    async def body(world: World) -> None:
        server = Server(world)
        server.grant()
        ticket = server.ask()
        assert server.queues.patience_ns(ticket) == DISK_NS
        await world.clock.sleep(DISK_NS)
        refused = withdraw(ticket)
        assert isinstance(refused, Refused) and "journal" in str(refused)
        assert refused.retry_after == DISK_NS / SECOND_NS
        server.write()
        assert server.queues.patience_ns(server.ask()) == 0

    run(body)


def test_the_first_tokens_of_the_next_period_are_written_before_it_begins() -> None:
    async def body(world: World) -> None:
        server = Server(world)
        server.grant(1)
        server.write()
        await world.clock.sleep(PERIOD_NS)
        server.grant(2)
        assert server.take().period == 2

    run(body, seconds=90)
