"""Claims under every fault: three nodes, each with the resource behind its door, tasks and claims over a
handful of names, keys that several nodes use, callers that give up, work that writes through guards,
nodes that crash, pause and lose their sessions."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from bursar.claims.book import ClaimBook
from bursar.claims.fences import Guard, StaleFence, read_phase
from bursar.claims.layout import Layout, task_id
from bursar.claims.lots import Lot, read_count, read_lot
from bursar.claims.model import Holding, State, Task, decode_era, decode_holding, decode_task
from bursar.claims.requirements import Mode, Requirement, Requirements, parse
from bursar.claims.resource import open_resource
from bursar.claims.tracker import Dispatch, InProcessTracker
from bursar.errors import NodeMissingError, Refused, StoreError, Unknown
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.sim.chance import draw_ns
from bursar.sim.faults import Faults
from bursar.sim.loop import sleep_until
from bursar.sim.operators import look_often
from bursar.sim.scenario import Boot, Scenario, require
from bursar.sim.scenarios.claim.policies import ANYBODY, INSTANCES, RESOURCE, TENANTS, ClaimPolicies
from bursar.sim.scenarios.claim.tries import LATE, Tries
from bursar.stores.tree import Tree
from bursar.world import MILLISECOND_NS, SECOND_NS, World

WORK_MAX_NS = 300 * MILLISECOND_NS
PAUSE_MAX_NS = 900 * MILLISECOND_NS
TASKS_PER_LIFE = 8
CLAIMS_PER_LIFE = 10
WAITS = (0.0, 0.2, 1.0)
KEYED: dict[str, tuple[tuple[int, str], ...]] = {
    "k1": ((0, "E"),),
    "k2": ((1, "S"), (2, "E")),
    "k3": ((3, "S"),),
}
"""What is asked for with a key: the same names, by their number, at every node."""

WHOLE = 0.1
URGENT = 0.2
"""How many claim the resource as a whole; how many come before others."""

OPERATE_NS = 1_500 * MILLISECOND_NS
BY_HAND_NS = 12 * SECOND_NS
"""An operator does something once in so long at each node; and so long after the faults, whatever is still
held in the name of the dead is released by hand."""

LATE_NS = 2 * SECOND_NS
LEAVE_NS = 8 * SECOND_NS
CHANGE_NS = 2 * SECOND_NS
OUTAGE_NS = 600 * MILLISECOND_NS
GIVEN_UP = 0.3
GIVEN_UP_MAX_NS = 600 * MILLISECOND_NS
"""So many callers stop waiting, or leave in the middle of their work, within so long."""

RUNNING_MAX = 3
LATEST = 6
NAMES_SWEEP_NS = SECOND_NS // 2

Grantee = tuple[str, tuple[int, ...]]
"""A task and the phases that it was granted."""


class SmallLayout(Layout):
    """What there are many of, in fewer folders: quicker to list."""

    name_shards = ("00", "01")
    task_shards = ("00", "01")
    released_shards = ("00", "01")


class ClaimScenario(Scenario):
    """The truth: the tree of the store itself, and guards that saw every write."""

    duration_ns = 6 * SECOND_NS
    settle_ns = 25 * SECOND_NS
    session_timeout_ns = SECOND_NS
    book: type[ClaimBook] = ClaimBook
    policies: ClaimPolicies
    tries: Tries

    def __init__(self) -> None:
        self.submitted: dict[str, None] = {}
        self.executed: dict[str, int] = {}
        self.guards: defaultdict[str, Guard] = defaultdict(Guard)
        self.granted: dict[Grantee, int] = {}
        self.writers: defaultdict[str, dict[Grantee, tuple[Mode, int]]] = defaultdict(dict)
        self.refused_writes = 0
        self.resources: dict[str, Resource] = {}
        self._layout = SmallLayout(RESOURCE)
        self._revision = 0
        self._phases: dict[str, int] = {}
        self._keys: dict[str, str] = {}
        self._wrong: str | None = None
        self._units: dict[tuple[str, int, int], dict[str, int]] = {}

    def faults(self) -> Faults:
        return Faults(
            store_cuts=0.3,
            crashes=0.3,
            pauses=0.5,
            store_lost=0.05,
            store_slow=0.03,
            store_stale=0.1,
            drift=True,
            outage_ns=1200 * MILLISECOND_NS,
        )

    def nodes(self) -> Mapping[str, Boot]:
        self.policies = ClaimPolicies(self.sim.chance.stream("policy"))
        self.tries = Tries(self.policies.first.attempts, self.duration_ns)
        if self.policies.by_hand:  # what waited for the dead begins only then
            self.settle_ns += BY_HAND_NS
        return dict.fromkeys(INSTANCES, self._boot)

    @property
    def names(self) -> tuple[str, ...]:
        """All that can be held: the resource as a whole has its own name."""
        return (*self.policies.names, RESOURCE)

    @property
    def tree(self) -> Tree:
        return self.sim.tree

    async def _boot(self, world: World) -> None:
        def work(dispatch: Dispatch):  # type: ignore[no-untyped-def]
            return self._work(world, dispatch)

        resource = open_resource(
            world,
            RESOURCE,
            self.policies.first,
            tracker=InProcessTracker(work),
            running_max=RUNNING_MAX,
            book=self.book,
            layout=SmallLayout,
            names_sweep_ns=NAMES_SWEEP_NS,
        )
        await resource.start()
        self.resources[world.name] = resource
        world.spawn(self._submit_tasks(world, resource), "tasks")
        world.spawn(self._make_claims(world, resource), "claims")
        draw = self.sim.chance.stream(f"operator/{world.name}")
        world.spawn(look_often(world, resource, TENANTS, draw), "looks")
        world.spawn(self._operate(world, resource, draw), "operator")

    async def _submit_tasks(self, world: World, resource: Resource) -> None:
        for number in range(TASKS_PER_LIFE):
            await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
            key = f"{world.name}-{world.incarnation}-{number}"
            names = [*_write(self._choose(world)), *self._count(world)]
            priority = 1 if world.random.random() < URGENT else 0
            fate = self.tries.draw(world.random)
            submit = resource.verb(
                "submit",
                tenant=world.name,
                names=names,
                key=key,
                priority=priority,
                retries=fate.retries,
                backoff=fate.backoff_s,
            )
            self.tries.submitted(task_id(world.name, key), fate)
            try:
                id = await submit
            except Unknown:
                return  # it is being stopped
            self.submitted[id] = None

    async def _operate(self, world: World, resource: Resource, draw: random.Random) -> None:
        """What operators ask and do, at any moment."""
        while self.sim.now_ns < self.duration_ns:
            await world.clock.sleep(draw_ns(draw, 0, OPERATE_NS))
            name, ids = draw.choice(self.names), [*self.submitted] or ["t-nobody"]
            id = draw.choice(ids[-LATEST:])
            verb, arguments = draw.choice(
                (
                    ("tasks", {}),
                    ("dead", {}),
                    ("read", {"id": id}),
                    ("why", {"id": id}),
                    ("wait_for", {"id": id, "timeout": 0.2}),
                    ("cancel", {"id": id, "wait": 0.2}),
                    ("cancel", {"id": ids[-1], "wait": 0.0}),
                    ("cancel", {"id": ids[-1], "wait": 0.5}),
                    ("history", {"most": 10}),
                    ("wait_for_some", {"ids": ids[-LATEST:], "count": 1, "timeout": 0.2}),
                    ("holders", {"of": name}),
                    ("force_release", {"of": name}),
                )
            )
            try:
                if verb == "cancel":
                    self.tries.asked(str(arguments["id"]), self.sim.now_ns)
                answer = await resource.verb(verb, **arguments)
            except (Refused, Unknown, StoreError):
                continue
            if verb == "cancel" and answer == "asked":
                self.tries.heard(str(arguments["id"]))

    def healed(self) -> None:
        self.sim.spawn(self._cancel_late(), "late")
        if self.policies.by_hand:
            self.sim.spawn(self._release_by_hand(), "by_hand")

    async def _cancel_late(self) -> None:
        """One that fails again and again, while it runs, by another node than took it in."""
        await sleep_until(self.sim.loop, self.sim.now_ns + LATE_NS)
        while not all(name in self.resources for name in INSTANCES):
            await sleep_until(self.sim.loop, self.sim.now_ns + LATE_NS // 100)
        one, other = (self.resources[name] for name in INSTANCES[:2])
        terms = {"retries": LATE.retries, "backoff": LATE.backoff_s}
        self.tries.submitted(task_id(INSTANCES[0], "late"), LATE)
        try:
            id = await one.verb("submit", tenant=INSTANCES[0], names="late:E", key="late", **terms)
            self.submitted[id] = None
            while id not in self.executed:
                await sleep_until(self.sim.loop, self.sim.now_ns + LATE_NS // 100)
            self.tries.asked(id, self.sim.now_ns)
            await other.verb("cancel", id=id, wait=0.0)
            self.tries.heard(id)
        except (Refused, Unknown, StoreError):
            return

    async def _release_by_hand(self) -> None:
        """What was held in the name of the dead, and whatever else is held meanwhile."""
        await sleep_until(self.sim.loop, self.sim.now_ns + BY_HAND_NS)
        for name in self.names:
            await self.resources[INSTANCES[0]].verb("force_release", of=name)

    def _choose(self, world: World) -> Requirements:
        names = list(self.policies.names)
        world.random.shuffle(names)
        chosen = names[: world.random.randrange(1, 4)]
        modes = (Mode.SHARED, Mode.EXCLUSIVE)
        return self._parse([f"{name}:{world.random.choice(modes)}" for name in chosen])

    def _count(self, world: World) -> list[str]:
        """So many of each counted name, often none."""
        counted = self.policies.first.counted
        drawn = {name: world.random.randrange(0, 2 * most) for name, most in counted.items()}
        return [f"{name}:{units}" for name, units in drawn.items() if 0 < units <= counted[name]]

    def _parse(self, texts: Sequence[str]) -> Requirements:
        return parse(texts, paths=self.policies.first.paths)

    async def _make_claims(self, world: World, resource: Resource) -> None:
        for _ in range(CLAIMS_PER_LIFE):
            await world.clock.sleep(world.random.randrange(0, PAUSE_MAX_NS))
            claim = world.spawn(self._claim(world, resource), "claim")
            if world.random.random() < GIVEN_UP:
                await world.clock.sleep(world.random.randrange(0, GIVEN_UP_MAX_NS))
                claim.cancel()

    async def _claim(self, world: World, resource: Resource) -> None:
        key = world.random.choice((None, *KEYED))
        numbers = KEYED[key] if key is not None else ()
        keyed = [f"{self.policies.names[number]}:{mode}" for number, mode in numbers]
        needs = self._choose(world) if key is None else self._parse(keyed)
        tenant = world.name if key is None else ANYBODY
        wait, priority = world.random.choice(WAITS), 1 if world.random.random() < URGENT else 0
        texts = [*_write(needs), *(self._count(world) if key is None else ())]
        acquiring = resource.claim(texts, tenant, wait=wait, key=key, priority=priority)
        if key is None and world.random.random() < WHOLE:
            needs, acquiring = (Requirement(RESOURCE, Mode.EXCLUSIVE),), resource.acquire(tenant, wait=wait)
        try:
            async with acquiring as grant:
                await self._write(world, grant.id, needs, grant.fence)
                await self._use(world, grant)
        except (Refused, Unknown):
            return

    async def _use(self, world: World, grant: Grant) -> None:
        """What else somebody does who holds something."""

    async def _do_part(self, world: World, dispatch: Dispatch) -> None:
        """As a part of another task, with names of its parent's."""

    async def _do_more(self, world: World, dispatch: Dispatch) -> None:
        """What else a task does."""

    async def _work(self, world: World, dispatch: Dispatch) -> bytes:
        self._wrong = self._wrong or self.tries.begin(dispatch, self.sim.now_ns)
        self.executed[dispatch.id] = self.executed.get(dispatch.id, 0) + 1
        task = self._read_record(dispatch.id)
        try:
            if task is not None and task.parent:
                await self._do_part(world, dispatch)
            elif task is not None and task.attempt == dispatch.attempt:
                await self._write(world, task.id, task.requirements, dispatch.fences)
                await self._do_more(world, dispatch)
        except asyncio.CancelledError:
            self.tries.stop(dispatch)
            raise
        self.tries.end(dispatch)
        return b"done"

    async def _write(self, world: World, id: str, needs: Requirements, fences: Mapping[str, int]) -> None:
        """Use every name for a while, through its guard, as a holder that never asks again does."""
        phases = tuple(read_phase(self._epoch(), fences[name]) for name, _ in needs)
        for _ in range(3):
            await world.clock.sleep(world.random.randrange(0, WORK_MAX_NS))
            for name, mode in needs:
                try:
                    self.guards[name].check(name, fences[name])
                except StaleFence:
                    self.refused_writes += 1
                    return
                self._note_write(name, mode, (id, phases), fences[name])

    def _epoch(self) -> int:
        data, _ = self.tree.get(self._layout.root)
        return decode_era(self._layout.root, data).epoch

    def _note_write(self, name: str, mode: Mode, writer: Grantee, fence: int) -> None:
        """One grant writes with one fence, however many names it has by then."""
        mine = self.granted.get(writer, 0)
        for other, (how, theirs) in self.writers[name].items():
            same = (other[0], theirs) == (writer[0], fence)
            if not same and Mode.EXCLUSIVE in (mode, how) and self.granted.get(other, 0) > mine:
                self._wrong = f"{name}: the guard took a write of {writer} after {other}, granted later"
        self.writers[name][writer] = mode, fence

    def _read_record(self, id: str) -> Task | None:
        try:
            data, _ = self.tree.get(self._layout.task(id))
        except NodeMissingError:
            return None
        return decode_task(id, data)

    # What must hold

    def check(self) -> None:
        require(self._wrong is None, str(self._wrong))
        revision = self.tree.revision
        if revision == self._revision:
            return
        self._revision = revision
        self._keys = {}
        for name in self.names:
            self._check_name(name)
        for name, capacity in self.policies.first.counted.items():
            self._check_units(name, capacity)

    def _check_units(self, name: str, capacity: int) -> None:
        """What lies somewhere and what tasks have are together what there is, neither more nor less."""
        node = self.tree.read(self._layout.count(name))
        if node is None:
            return
        count = read_count(name, node.data)
        idle = sum(lot.units for lot in self._list_lots(name))
        used = sum(self._read_units(id, name) for id in self._list("tasks"))
        require(used <= capacity, f"{name}: {used} are used, and there are {capacity}")
        about = count.capacity + count.owed
        require(used + idle == about, f"{name}: {used} are used and {idle} are not, of {about}")

    def _list_lots(self, name: str) -> list[Lot]:
        path = self._layout.lots(name)
        return [read_lot(path, lot) for lot in self.tree.children(path)]

    def _read_units(self, id: str, name: str) -> int:
        """How many a task has; each version of a record is read once."""
        node = self.tree.read(self._layout.task(id))
        assert node is not None, "it was listed"
        place = id, node.created, node.version
        counts = self._units.get(place)
        if counts is None:
            task = decode_task(id, node.data)
            holds = task.state in (State.RUNNING, State.DONE)
            counts = self._units[place] = dict(task.counts) if holds else {}
        return counts.get(name, 0)

    def _check_name(self, name: str) -> None:
        node = self.tree.read(self._layout.name(name))
        if node is None:
            return
        holding = decode_holding(name, node.data)
        sharers = self._sharers(name)
        both = holding.owner and sharers
        require(not both, f"{name} is owned by {holding.owner} and shared by {sharers}")
        require(holding.phase >= self._phases.get(name, 0), f"{name}: the phase fell to {holding.phase}")
        self._phases[name] = holding.phase
        for id in [holding.owner] if holding.owner else sharers:
            self._check_owner(name, holding, id)

    def _sharers(self, name: str) -> list[str]:
        if self.tree.read(self._layout.sharers(name)) is None:
            return []
        return self.tree.children(self._layout.sharers(name))

    def _check_owner(self, name: str, holding: Holding, id: str) -> None:
        task = self._read_record(id)
        require(task is not None, f"{name} is owned by {id}, which has no record")
        assert task is not None
        require(task.state in (State.RUNNING, State.DONE), f"{name} is owned by {id}, which is {task.state}")
        wanted = Mode.EXCLUSIVE if holding.owner else Mode.SHARED
        require((name, str(wanted)) in task.needs, f"{id} owns {name}:{wanted}, which it does not need")
        same = self._keys.setdefault(task.key or id, id)
        require(same == id, f"{id} and {same} are held with the same key")
        self.granted.setdefault((id, task.phases), self._revision)

    def _list(self, kind: str) -> list[str]:
        folders = [f"{self._layout.root}/{kind}/{shard}" for shard in SmallLayout.task_shards]
        return [id for folder in folders for id in self.tree.children(folder)]

    def crashed(self, name: str) -> None:
        self.resources.pop(name, None)

    def audit(self) -> None:
        for name in self.names:
            node = self.tree.read(self._layout.name(name))
            holding = decode_holding(name, node.data) if node is not None else Holding()
            require(not holding.owner, f"{name} is still owned by {holding.owner}")
            require(not self._sharers(name), f"{name} is still shared by {self._sharers(name)}")
            require(node is None, f"{name} is used by nobody and was not removed")
        require(not self._list("tasks"), f"these tasks were never finished: {self._list('tasks')}")
        for name in self.policies.first.counted:
            node = self.tree.read(self._layout.count(name))
            require(node is None or not read_count(name, node.data).owed, f"{name} owes what is not there")
        require(not self._list("keys"), f"these keys are nobody's: {self._list('keys')}")
        self.tries.check_requests(self.tree.children(self._layout.cancels))
        for id in self.submitted:
            node = self.tree.read(self._layout.released(id)) or self.tree.read(self._layout.dead(id))
            require(node is not None, f"the task {id} is lost")
            assert node is not None
            task = decode_task(id, node.data)
            outcome = task.outcome
            self.tries.check_end(task)
            require(self.executed.get(id, 0) >= 1 or outcome != "ok", f"the task {id} was never executed")


class LeavingClaimScenario(ClaimScenario):
    """Instances are stopped in the middle of everything and come back; their terms change while they run,
    and whoever submits is let in by a template."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    async def _boot(self, world: World) -> None:
        await super()._boot(world)
        world.spawn(self._change(world, self.resources[world.name]), "policy")
        world.spawn(self._leave(world, self.resources[world.name]), "leaving")

    async def _change(self, world: World, resource: Resource) -> None:
        while True:
            await resource.reconfigure(self.policies.change())
            await world.clock.sleep(world.random.randrange(0, CHANGE_NS))

    async def _leave(self, world: World, resource: Resource) -> None:
        await world.clock.sleep(world.random.randrange(0, LEAVE_NS))
        if self.sim.now_ns < self.duration_ns:
            await resource.stop()
            self.left += 1
            self.sim.spawn(self._end(world.name), f"end.{world.name}")

    async def _end(self, name: str) -> None:
        if self.sim.node(name).up:
            self.sim.crash(name, OUTAGE_NS)


def _write(needs: Requirements) -> list[str]:
    return [str(need) for need in needs]
