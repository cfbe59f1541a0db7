"""Small worlds of claims that ask for more while they hold something, and of tasks that need counted names:
searched in every order, as those in `small`.

What must hold besides: nobody waits for somebody who waits for it; where nothing is in flight, nobody asks
for a name that is free. Units are neither made nor lost, and nobody waits for units while enough of them
lie somewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from bursar.claims.courier import Instance, new_task
from bursar.claims.instance_book import More
from bursar.claims.lots import read_count, read_lot
from bursar.claims.model import State, Task
from bursar.claims.requirements import parse, parse_needs
from bursar.claims.tending import TEND_NS
from bursar.errors import BursarError
from bursar.resource import Granted, Ticket
from bursar.sim.ordering import Ordering
from bursar.sim.orders import Move, Troubles
from bursar.sim.scenarios.claim.small import RESOURCE, SmallClaims, TinyLayout, Works
from bursar.world import SECOND_NS, World

ASKING_NS = 3_599 * SECOND_NS
"""How long they wait for more: for ever, as far as a search goes."""

CLAIMS = {"c1": ("i1", "a", "b"), "c2": ("i2", "b", "a")}
"""Where each claim is asked for, what it claims, and what it asks for then."""


class AskingClaims(SmallClaims):
    """Two claims, each of which asks for what the other holds. Whoever is answered lets go of everything."""

    periodic_ns = frozenset({TEND_NS, ASKING_NS})
    troubles = Troubles(dead=0)

    def __init__(self) -> None:
        super().__init__()
        self.tickets: dict[str, Ticket] = {}
        self.held: dict[str, Granted] = {}
        self.answers: dict[str, str] = {}

    def submit_all(self) -> None:
        for id, (node, name, _) in CLAIMS.items():
            self._claim(node, id, name)

    def _claim(self, node: str, id: str, name: str) -> None:
        task = new_task(id=id, tenant=id, needs=parse(f"{name}:E"), submitted=1, is_claim=True)
        self.tickets[id] = Ticket("t", 1, names=(f"{name}:E",), wait_ns=ASKING_NS)
        self.instances[node].claims.ask(task, self.tickets[id])

    def events(self, run: Ordering) -> list[Move]:
        moves: list[Move] = []
        for id, ticket in self.tickets.items():
            node, _, more = CLAIMS[id]
            if id not in self.held and isinstance(ticket.answer, Granted):
                moves.append((f"{node}: {id} asks for {more}", self._asking(node, id, more)))
            elif id in self.held and self.answers.get(id):
                moves.append((f"{node}: {id} lets go", self._letting_go(node, id)))
        return moves

    def _asking(self, node: str, id: str, more: str) -> Callable[[], None]:
        def ask() -> None:
            granted = self.tickets[id].answer
            assert isinstance(granted, Granted)
            self.held[id], self.answers[id] = granted, ""
            self.instances[node].spawn(self._ask(node, id, more), f"asks.{id}")

        return ask

    async def _ask(self, node: str, id: str, more: str) -> None:
        held: Task = self.held[id].data.task
        try:
            await self.instances[node].asking.ask(held, parse_needs(f"{more}:E"), ASKING_NS)
            self.answers[id] = "granted"
        except BursarError as error:
            self.answers[id] = type(error).__name__

    def _letting_go(self, node: str, id: str) -> Callable[[], None]:
        def let_go() -> None:
            self.answers[id] = ""
            self.instances[node].claims.holdings.finish(self.held[id].data)
            del self.tickets[id]

        return let_go

    def tell(self, node: str) -> Hashable:
        asking = tuple((id, more.granting, more.recorded) for id, more in self._list_asking(node).items())
        return super().tell(node), tuple(self.tickets), tuple(self.held), tuple(self.answers.items()), asking

    def _list_asking(self, node: str) -> Mapping[str, More]:
        return self.instances[node].asking.waiting

    def check_quiet(self, run: Ordering) -> None:
        super().check_quiet(run)
        waits: dict[str, str] = {}
        for each in (more.held for node in self.nodes for more in self._list_asking(node).values()):
            more = CLAIMS[each.tenant][2]
            holding, _ = self._read_name(run, more)
            assert holding.owner, f"{each.tenant} asks for {more} for ever, and it is free"
            waits[each.id] = holding.owner
        for id, other in waits.items():
            assert waits.get(other) != id, f"{id} and {other} wait for each other for ever"


class CountedClaims(SmallClaims):
    """Three tasks of two instances that need more units together than there are."""

    counted = 3

    async def begin(self, run: Ordering, worlds: dict[str, World]) -> None:
        for name, world in worlds.items():
            self.works[name] = Works()
            self.instances[name] = Instance(
                world,
                RESOURCE,
                tracker=self.works[name],
                layout=TinyLayout,
                running_max=2,
                counted={"g": self.counted},
            )
            await self.instances[name].start()
        self.submit_all()

    def submit_all(self) -> None:
        self.submit("i1", "t1", "g:2")
        self.submit("i2", "t2", "a:E", "g:2")
        self.submit("i1", "t3", "a:S", "g:1")

    def submit(self, node: str, id: str, *names: str) -> None:
        needs = parse_needs(names, counted={"g": self.counted})
        task = new_task(id=id, tenant="t", needs=needs.names, counts=needs.counts, submitted=1, kept=True)
        self.instances[node].spawn(self.instances[node].submit(task), f"submit.{id}")

    def tell(self, node: str) -> Hashable:
        instance = self.instances[node]
        kept = tuple(
            (tuple(each.idle), tuple(each.flying)) for each in instance.book.plans.lots.kept.values()
        )
        tanks = tuple(tank.free for tank in instance.queue.tanks.values())
        return super().tell(node), kept, tanks

    def check(self, run: Ordering) -> None:
        super().check(run)
        used, idle = self._count(run)
        assert used <= self.counted, f"{used} units are used, and there are {self.counted}"
        about = sum(read_count("g", self._read_count(run)))
        assert used + idle == about, f"{used} units are used and {idle} are not, of {about}"

    def _read_count(self, run: Ordering) -> bytes:
        node = run.tree.read(self.layout.count("g"))
        assert node is not None, "it was set up in the beginning"
        return node.data

    def _count(self, run: Ordering) -> tuple[int, int]:
        """Units that tasks have, and that lie somewhere."""
        path = self.layout.lots("g")
        idle = sum(read_lot(path, node).units for node in run.tree.children(path))
        tasks = [self._read_task(run, id) for id in run.tree.children(self.layout.task_folder(""))]
        holds = [task for task in tasks if task is not None and task.state is not State.PENDING]
        return sum(dict(task.counts).get("g", 0) for task in holds), idle

    def _is_held_up(self, run: Ordering, task: Task) -> bool:
        """Who came first is left what it needs; that may be late, and more is gathered for it."""
        folder = self.layout.task_folder("")
        before = []
        for id in run.tree.children(folder):
            other = self._read_task(run, id)
            assert other is not None
            if other.state is State.PENDING and run.tree.get(f"{folder}/{id}")[1].created <= self._age(
                run, task
            ):
                before.append(dict(other.counts)["g"])
        return super()._is_held_up(run, task) or self._count(run)[1] < sum(before)

    def _age(self, run: Ordering, task: Task) -> int:
        return run.tree.get(self.layout.task(task.id))[1].created
