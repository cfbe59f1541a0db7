"""A stage for plays: nodes in virtual time, each with the resource behind its door, on one store whose
network the play cuts when it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from bursar.claims.layout import TASK_SHARDS
from bursar.claims.model import State, Task, decode_task
from bursar.claims.resource import ClaimDecider, open_resource
from bursar.claims.tracker import Dispatch, InProcessTracker
from bursar.policy import ClaimPolicy
from bursar.resource.door import Resource
from bursar.sim.faults import Faults
from bursar.sim.scenario import Boot, Scenario
from bursar.sim.simulation import Run, Simulation
from bursar.sim.store import STORE
from bursar.stores.tree import Tree
from bursar.world import SECOND_NS, World

Act = Callable[["Stage"], Coroutine[Any, Any, None]]


class Stage(Scenario):
    duration_ns = 200 * SECOND_NS
    settle_ns = SECOND_NS

    def __init__(self, act: Act, nodes: tuple[str, ...], works: bool, terms: Mapping[str, Any]) -> None:
        self._act = act
        self._works = works
        self.begun: list[str] = []
        self._names = nodes
        self._terms = terms
        self._is_over = False
        self.resources: dict[str, Resource] = {}

    def nodes(self) -> Mapping[str, Boot]:
        return dict.fromkeys(self._names, self._boot)

    async def _boot(self, world: World) -> None:
        async def work(dispatch: Dispatch) -> bytes:
            self.begun.append(dispatch.id)
            text = dispatch.payload.decode() or "0"
            await world.clock.sleep(int(float(text.rstrip("!")) * SECOND_NS))
            if text.endswith("!"):
                raise ValueError("its payload says so")
            return b"done"

        tracker = InProcessTracker(work) if self._works else None
        policy = ClaimPolicy(name="things", **self._terms)
        resource = open_resource(world, "things", policy, tracker=tracker)
        await resource.start()
        self.resources[world.name] = resource

    def workloads(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        return {"play": self._play()}

    async def _play(self) -> None:
        while len(self.resources) < len(self._names):
            await self.sleep(0.01)
        await self._act(self)
        self._is_over = True

    def audit(self) -> None:
        assert self._is_over, "the play never came to its end"

    # For plays

    async def sleep(self, seconds: float) -> None:
        """True time, whatever becomes of the nodes."""
        woken = self.sim.loop.create_future()
        self.sim.loop.call_at_ns(self.sim.now_ns + int(seconds * SECOND_NS), _wake, woken)
        await woken

    def decider(self, node: str) -> ClaimDecider:
        found = self.resources[node].decider
        assert isinstance(found, ClaimDecider)
        return found

    def cut(self, node: str) -> Callable[[], None]:
        """The store cannot be reached from this node, until what is returned is called."""
        return self.sim.fabric.cut([(node, STORE), (STORE, node)])

    def stop_store(self) -> Callable[[], None]:
        """No node reaches the store, until what is returned is called; sessions outlast it, as they do
        where the servers are away for all of that time."""
        heals = [self.cut(node) for node in self._names]
        for session in self._tree.sessions.values():
            session.expires_ns += 3600 * SECOND_NS
        return lambda: [heal() for heal in heals] and None

    def cut_replies(self, node: str) -> Callable[[], None]:
        """The store does what this node asks for, which hears nothing of it."""
        return self.sim.fabric.cut([(STORE, node)])

    def go_down(self, node: str, seconds: float) -> None:
        del self.resources[node]
        self.sim.crash(node, int(seconds * SECOND_NS))

    async def until(self, holds: Callable[[], bool], seconds: float = 30) -> None:
        for _ in range(int(seconds * 100)):
            if holds():
                return
            await self.sleep(0.01)
        raise AssertionError("it never came true")

    async def timed(self, work: Awaitable[Any]) -> tuple[float, Any]:
        """How many seconds the work took, and what it returned or raised."""
        began = self.sim.now_ns
        try:
            outcome = await work
        except Exception as error:  # noqa: BLE001  what it raises is what is looked at
            outcome = error
        return (self.sim.now_ns - began) / SECOND_NS, outcome

    def records(self) -> list[Task]:
        """Every task in the store, as it is there."""
        return [decode_task(path, self._tree.get(path)[0]) for path in self._list("tasks")]

    def marks(self) -> list[str]:
        """The tasks that instances look after."""
        return [path.rpartition("/")[2] for path in self._list("busy")]

    @property
    def _tree(self) -> Tree:
        return self.sim._surroundings.store.tree

    def _list(self, kind: str) -> list[str]:
        folders = [f"/claims/things/{kind}/{shard}" for shard in TASK_SHARDS]
        return [f"{folder}/{id}" for folder in folders for id in self._tree.children(folder)]

    def held(self) -> list[str]:
        return [task.id for task in self.records() if task.state is State.RUNNING]


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


NO_FAULTS = Faults()


def play(
    act: Act,
    nodes: tuple[str, ...] = ("n1",),
    *,
    faults: Faults = NO_FAULTS,
    works: bool = False,
    **terms: Any,
) -> Run:
    """Raises what the play raises. `works`: tasks are done, each for as many seconds as its payload says;
    `terms` are those of the policy."""
    return Simulation("stage", Stage(act, nodes, works, terms), 1, faults=faults).run()
