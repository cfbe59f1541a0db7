"""Small worlds of claims, searched in every order of what two instances ask of the store: three tasks, two
names, ends, a death, lost replies, an outage.

What must hold: no conflicting owners, whatever happens; where nothing is in flight, nobody waits while all
that it needs is free, and no end that somebody knows of is missing from the store. No periodic timer
rings here, so none of that rests on one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from bursar.claims.courier import Instance, new_task
from bursar.claims.doing import POLL_NS
from bursar.claims.layout import Layout
from bursar.claims.limits import END_AGAIN_NS
from bursar.claims.model import Holding, State, Task, decode_holding, decode_task
from bursar.claims.requirements import parse
from bursar.claims.tending import TEND_NS
from bursar.claims.tracker import Dispatch, Progress, Report
from bursar.resource import Granted, Ticket
from bursar.sim.ordering import Ordering
from bursar.sim.orders import Move, OrderedWorld, Troubles
from bursar.world import World

RESOURCE = "things"
NAMES = ("a", "b")
assert POLL_NS != END_AGAIN_NS, "the search tells timers by how long they are"


class TinyLayout(Layout):
    """One folder of each kind."""

    name_shards = ("0",)
    task_shards = ("0",)
    released_shards = ("0",)


class Works:
    """What one process does, for as long as the search likes: each dispatch ends, or is lost."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Future[Report | None]] = {}
        self.attempts: dict[str, int] = {}

    async def dispatch(self, dispatch: Dispatch) -> Report | None:
        done = self.running[dispatch.id] = asyncio.get_running_loop().create_future()
        self.attempts[dispatch.id] = dispatch.attempt
        report: Report | None = await done
        return report

    async def status(self, dispatch: Dispatch) -> Report | Progress:
        return Progress.RUNNING if dispatch.id in self.running else Progress.LOST

    async def cancel(self, dispatch: Dispatch, why: str) -> None:
        """Asked, it ends when the search says so."""

    async def note(self, id: str) -> str:
        return ""

    def end(self, id: str, report: Report | None) -> None:
        self.running.pop(id).set_result(report)


class SmallClaims(OrderedWorld):
    """Three tasks, submitted at both instances: each ends when its work does."""

    nodes = ("i1", "i2")
    periodic_ns = frozenset({TEND_NS})
    asking_ns = frozenset({POLL_NS})

    def __init__(self) -> None:
        self.layout = TinyLayout(RESOURCE)
        self.instances: dict[str, Instance] = {}
        self.works: dict[str, Works] = {}
        self.ended: dict[tuple[str, int], str] = {}

    async def begin(self, run: Ordering, worlds: dict[str, World]) -> None:
        for name, world in worlds.items():
            self.works[name] = Works()
            self.instances[name] = Instance(
                world, RESOURCE, tracker=self.works[name], layout=TinyLayout, running_max=2
            )
            await self.instances[name].start()
        self.submit_all()

    def submit_all(self) -> None:
        self.submit("i1", "t1", "a:E")
        self.submit("i2", "t2", "a:S", "b:E")
        self.submit("i1", "t3", "b:S")

    def submit(self, node: str, id: str, *names: str) -> None:
        task = new_task(id=id, tenant="t", needs=parse(names), submitted=1, kept=True)
        self.instances[node].spawn(self.instances[node].submit(task), f"submit.{id}")

    def events(self, run: Ordering) -> list[Move]:
        return [
            (f"{node}: the work of {id} ends", self._ending(node, id, Report("ok")))
            for node, works in self.works.items()
            if not run.lives[node].dead
            for id in works.running
        ]

    def _ending(self, node: str, id: str, report: Report | None) -> Callable[[], None]:
        def end() -> None:
            if report is not None:
                self.ended[id, self.works[node].attempts[id]] = node
            self.works[node].end(id, report)

        return end

    def tell(self, node: str) -> Hashable:
        instance = self.instances[node]
        mine = tuple((id, each.task.state, each.version, each.granting) for id, each in instance.mine.items())
        places = tuple(
            (name, place.owner, tuple(place.sharers), place.is_waited_at())
            for name, place in instance.queue.places.items()
        )
        views = tuple(
            (name, view.version, view.holding.owner) for name, view in instance.book.plans.views.items()
        )
        return (
            instance.member.generation,
            mine,
            places,
            views,
            tuple(instance.queue.entries),
            tuple(self.ended),
        )

    # What must hold

    def check(self, run: Ordering) -> None:
        for name in NAMES:
            holding, sharers = self._read_name(run, name)
            assert not (holding.owner and sharers), f"{name} is owned by {holding.owner}, shared by {sharers}"
            for id in [holding.owner] if holding.owner else sharers:
                task = self._read_task(run, id)
                assert task is not None, f"{name} is owned by {id}, which has no record"
                assert task.state in (State.RUNNING, State.DONE), f"{id} owns {name} and is {task.state}"

    def check_quiet(self, run: Ordering) -> None:
        for id in run.tree.children(self.layout.task_folder("")):
            task = self._read_task(run, id)
            assert task is not None
            if task.state is State.PENDING and not self._is_held_up(run, task):
                raise AssertionError(f"{id} waits for ever, and all that it needs is free: {self._whys(id)}")
            node = self.ended.get((id, task.attempt)) if task.state is State.RUNNING else None
            if node is not None and not run.lives[node].dead:
                raise AssertionError(
                    f"{node} knows that {id} has ended, and the store does not: {task.state}"
                )

    def _is_held_up(self, run: Ordering, task: Task) -> bool:
        """Whether another has one of its names, or nobody could have it done."""
        if all(life.dead for life in run.lives.values()):
            return True
        found = {name: self._read_name(run, name) for name, _ in task.needs}
        return any(
            found[name][0].owner or (mode == "E" and found[name][1]) for name, mode in task.needs
        ) or self._is_full(run)

    def _is_full(self, run: Ordering) -> bool:
        """Whether every instance has as much to do as it may."""
        return all(len(self.works[node].running) >= 2 for node in self.nodes if not run.lives[node].dead)

    def _whys(self, id: str) -> str:
        told = [each.why(id) for each in self.instances.values() if id in each.queue.entries]
        return "; ".join(told) or "it is in nobody's queue"

    def audit(self, run: Ordering) -> None:
        left = run.tree.children(self.layout.task_folder(""))
        assert not left, f"nothing can happen any more, and {left} are not over"

    def _read_name(self, run: Ordering, name: str) -> tuple[Holding, list[str]]:
        node = run.tree.read(self.layout.name(name))
        if node is None:
            return Holding(), []
        folder = self.layout.sharers(name)
        return decode_holding(name, node.data), run.tree.children(folder) if run.tree.read(folder) else []

    def _read_task(self, run: Ordering, id: str) -> Task | None:
        node = run.tree.read(self.layout.task(id))
        return None if node is None else decode_task(id, node.data)


class LeavingClaims(SmallClaims):
    """One worker is told to stop, and loses what it does; at the other somebody asks for a name that it
    holds, and does not wait."""

    troubles = Troubles(dead=0)

    def __init__(self) -> None:
        super().__init__()
        self.left = False
        self.ticket: Ticket | None = None

    def submit_all(self) -> None:
        self.submit("i1", "t1", "a:E")
        self.submit("i2", "t2", "b:E")
        self.submit("i1", "t3", "b:S")

    def events(self, run: Ordering) -> list[Move]:
        moves = []
        if self.ticket is None:
            moves.append(("i2: somebody asks for a, and does not wait", self._ask))
        elif isinstance(self.ticket.answer, Granted):
            moves.append(("i2: it lets go of a", self._let_go))
        if not self.left:
            moves.append(("i1 is told to stop, and loses what it does", self._leave))
        return moves + super().events(run)

    def tell(self, node: str) -> Hashable:
        answer = type(self.ticket.answer).__name__ if self.ticket is not None else ""
        return super().tell(node), self.left, answer

    def _ask(self) -> None:
        task = new_task(id="c1", tenant="t", needs=parse("a:E"), submitted=1, is_claim=True)
        self.ticket = Ticket("t", 1, names=("a:E",), wait_ns=0)
        self.instances["i2"].claims.ask(task, self.ticket)

    def _let_go(self) -> None:
        assert self.ticket is not None and isinstance(self.ticket.answer, Granted)
        granted, self.ticket.answer = self.ticket.answer, None
        self.instances["i2"].claims.holdings.finish(granted.data)

    def _leave(self) -> None:
        self.left = True
        self.instances["i1"].stop_taking()
        for id in list(self.works["i1"].running):
            self.works["i1"].end(id, None)
