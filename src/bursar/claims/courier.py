"""An instance: carries the book's transactions to the store, looks after tasks, wakes who waits.

Several instances run on one store and share the work: each looks after the tasks that it marked
(`busy`, ephemeral), and only those. What an instance knows dies with its session, and with nothing
lost: whoever looks next finds every task in the store and goes on from its state (table 4.1):

    PENDING     it waits again
    RUNNING     a task: the tracker is asked, and its end awaited; one that the tracker lost, and a
                claim whose process is gone, is treated as the policy's `dead_holder` says
    DONE        its names are given back

Grants are made in the order of the queue, many in one transaction and many transactions in flight.
A transaction that the store refuses changed nothing: its names are read again, and its tasks try
again. Nothing else is ever repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from bursar.claims.acquisitions import Acquisitions
from bursar.claims.admission import Admission
from bursar.claims.asking import Asking
from bursar.claims.book import ClaimBook
from bursar.claims.cancels import Cancels
from bursar.claims.counting import Counting
from bursar.claims.division import Division
from bursar.claims.doing import Doing
from bursar.claims.ending import Ending
from bursar.claims.granting import Granting
from bursar.claims.instance_book import LOST, InstanceBook, Mine
from bursar.claims.layout import Layout, instance_node
from bursar.claims.learning import Learning
from bursar.claims.limits import RETRY_NS, TAKE_AT_ONCE, fit
from bursar.claims.looking import Looking
from bursar.claims.membership import Membership
from bursar.claims.model import Outcome, Task
from bursar.claims.names import Names
from bursar.claims.parts import Parts
from bursar.claims.queue import Order, Queue, WeightOf, conflict_order
from bursar.claims.reader import Reader, Record
from bursar.claims.requirements import NOTHING_COUNTED, parse_needs
from bursar.claims.submission import Submission
from bursar.claims.sweeping import NAMES_SWEEP_NS, Sweeping
from bursar.claims.takeover import Takeover
from bursar.claims.tending import Tending
from bursar.claims.tracker import Tracker
from bursar.errors import BursarError, NodeExistsError, NodeMissingError, Refused
from bursar.policy.values import DeadHolder
from bursar.world import MILLISECOND_NS, SECOND_NS, Operation, World

STOP_NS = 900 * MILLISECOND_NS


class Instance:
    """Its parts, put together. `start` it, then `submit`; claims are asked for with `claims.ask`."""

    def __init__(
        self,
        world: World,
        resource: str,
        *,
        dead_holder: DeadHolder = "auto",
        aging_ns: int = 600 * SECOND_NS,
        attempts_max: int = 5,
        weight_of: WeightOf | None = None,
        tracker: Tracker | None = None,
        order: Order = conflict_order,
        running_max: int | None = None,
        book: type[ClaimBook] = ClaimBook,
        layout: type[Layout] = Layout,
        names_sweep_ns: int = NAMES_SWEEP_NS,
        counted: Mapping[str, int] = NOTHING_COUNTED,
        paths: bool = False,
    ) -> None:
        self.paths = paths
        self.world = world
        self.me = f"{world.name}.{world.incarnation}"
        self.layout = layout(resource)
        plans = book(self.layout, self.me)
        make_queue = partial(Queue, order, *([weight_of] if weight_of is not None else []))
        self.reader = reader = Reader(world, plans)
        node = instance_node(self.me, works=tracker is not None)
        self.member = member = Membership(world, self.layout, reader, node)
        self.book = here = InstanceBook(plans, make_queue, works=tracker is not None, running_max=running_max)
        self._looking = looking = Looking(self.layout)
        self.claims = claims = Acquisitions(self)
        self.names = names = Names(member, here, reader)
        self.counting = counting = Counting(member, here, reader, counted)
        self.asking = asking = Asking(member, here, reader, names, counting)
        weigh = weight_of if weight_of is not None else _weigh_alike
        self.learning = learning = Learning(member, here, reader, order, weigh)
        self._parts = Parts(member, here, reader, names)
        self.admission = admission = Admission(
            member, here, reader, names, looking, claims, counting, self._withdraw
        )
        self._ending = ending = Ending(member, here, reader, names, looking, admission, claims, attempts_max)
        self._submission = submission = Submission(member, here, reader, looking, admission, ending)
        self.cancels = cancels = Cancels(member, here, reader, submission)
        self._doing = doing = Doing(member, here, reader, admission, ending, cancels, tracker, dead_holder)
        self._granting = Granting(
            member, here, reader, names, admission, submission, doing, claims, counting, asking
        )
        division = Division(member, here, looking)
        self._takeover = takeover = Takeover(
            member,
            here,
            reader,
            looking,
            division,
            admission,
            ending,
            submission,
            doing,
            claims,
            cancels,
            counting,
            asking,
        )
        self.sweeping = sweeping = Sweeping(member, here, reader)
        self._tending = Tending(
            member,
            here,
            names,
            admission,
            looking,
            division,
            submission,
            takeover,
            doing,
            cancels,
            sweeping,
            counting,
            learning,
            aging_ns,
            names_sweep_ns,
        )
        member.on_loss += [claims.lose_session, self._forget_everything, looking.everywhere]

    # Beginning and end

    async def attach(self) -> None:
        """Be able to read and change what the store has, without looking after any task."""
        await self.member.attach()

    async def start(self) -> None:
        """Set the store up where that is needed, and begin to grant."""
        await self.member.join()
        await self.counting.open()
        self._takeover.begin()
        self.spawn(self._granting.pump(), "pump")
        self.spawn(self._takeover.look_after(), "look")
        self.spawn(self._tending.tend(), "tend")

    def stop_taking(self) -> int:
        """Grant no more tasks; those that wait are left to others. Returns how many are being done."""
        self.book.draining = True
        self.book.running_max = 0
        self._looking.wanted.set()
        return len(self.book.running)

    async def drain(self, wait_ns: int) -> None:
        """Wait until what is being done is over, for at most so long."""
        assert self.book.draining, "stop taking first"
        until_ns = self.world.clock.now() + wait_ns
        while self.book.running and self.world.clock.now() < until_ns:
            await self.world.clock.sleep(RETRY_NS)

    async def stop(self) -> None:
        """Let go of what waits and of every mark of it, for at most a second; what runs or is held stays
        as it is, for others to find."""
        self.member.is_stopping = True
        left = asyncio.Event()
        self.spawn(self._leave(left), "stop")
        timer = self.world.spawn(self._ring(left, STOP_NS), f"claims.{self.layout.resource}.stop")
        await left.wait()
        timer.cancel()

    async def _ring(self, left: asyncio.Event, after_ns: int) -> None:
        await self.world.clock.sleep(after_ns)
        left.set()

    async def _leave(self, left: asyncio.Event) -> None:
        await self.claims.stop()
        waiting = self.book.find_leavable()
        self.member.stop()
        self._forget_everything()
        try:
            # The marks first: others look when the instance goes, and must find what it had.
            await self._let_go(waiting)
            for id in self.claims.holdings.ids:
                await self._unmark(id)
            await self.member.leave()
        except BursarError as error:
            self.member.problem = str(error)  # they go with the session
        left.set()

    def _forget_everything(self) -> None:
        self.book.forget()
        self.names.forget()
        self.counting.forget()
        self.asking.forget()
        self._granting.forget()
        self._doing.forget()

    async def _let_go(self, ids: list[str]) -> None:
        """Of tasks that wait: whoever looks next takes them."""
        at_once = fit(self.world.store, TAKE_AT_ONCE, 2)
        for first in range(0, len(ids), at_once):
            some = ids[first : first + at_once]
            try:
                await self.world.store.transact([op for id in some for op in self.book.plans.leave(id)])
            except (NodeMissingError, NodeExistsError):  # one of them is over, or was offered before
                for id in some:
                    await self._unmark(id)

    async def _unmark(self, id: str) -> None:
        """Unless it moved to another process."""
        mark = await self.world.store.exists(self.layout.busy(id))
        if mark is not None and mark.owner == self.world.store.session:
            await self.world.store.delete(self.layout.busy(id))

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self.member.spawn(work, name)

    def reconfigure(
        self, dead_holder: DeadHolder, aging_ns: int, attempts_max: int, counted: Mapping[str, int]
    ) -> None:
        """What can change while it runs."""
        self.counting.reconfigure(counted)
        self._doing.dead_holder = dead_holder
        self._tending.aging_ns = aging_ns
        self._ending.attempts_max = attempts_max

    async def _withdraw(self, id: str, outcome: Outcome, result: bytes) -> bool:
        return await self._submission.withdraw(id, outcome, result)

    # What others ask of it

    async def submit(self, task: Task) -> Task:
        """See `Submission`."""
        return await self._submission.submit(task)

    async def withdraw_stored(self, id: str, outcome: Outcome) -> bool:
        """Take back a record that waits: see `Submission`."""
        return await self._submission.withdraw(id, outcome)

    async def inherit(self, task: Task, version: int, *, marked: bool) -> Task | None:
        """Make a granted claim this process's own: see `Submission`."""
        return await self._submission.inherit(task, version, marked=marked)

    async def release(self, id: str, *, only: Task | None = None) -> bool:
        """Give back what it owns: see `Ending`."""
        return await self._ending.release(id, only=only)

    async def more(self, id: str, attempt: int, names: Sequence[str], wait_ns: int) -> dict[str, int]:
        """Names besides for a task that runs here: the fences of all it holds then. Raises Refused, Unknown,
        UsageError."""
        mine = self.book.mine.get(id)
        if mine is None or mine.task.attempt != attempt:
            raise Refused(LOST)
        needs = parse_needs(names, paths=self.paths, counted=self.book.capacities)
        return self.fences_of(await self.asking.ask(mine.task, needs, wait_ns))

    async def forecast(self, id: str, records: Sequence[Record]) -> float | None:
        """When a task should start: see `Learning`."""
        return await self.learning.forecast(id, records)

    async def wait_for_subtasks(self, id: str, attempt: int, subtasks: Sequence[str]) -> dict[str, int]:
        """Until these are over, without a place of those that are done at a time: the fences of the task that
        runs here from then on. Raises Refused, Unknown."""
        return self.fences_of(await self._parts.wait_for(id, attempt, subtasks))

    async def remove_holder(
        self, id: str, *, requeue: bool = False, only: Task | None = None, also: Sequence[Operation] = ()
    ) -> bool:
        """Take everything from it by force: see `Ending`."""
        return await self._ending.remove_holder(id, requeue=requeue, only=only, also=also)

    def fences_of(self, task: Task) -> dict[str, int]:
        return self._doing.fences_of(task)

    # What it tells

    @property
    def queue(self) -> Queue:
        return self.book.queue

    @property
    def mine(self) -> dict[str, Mine]:
        return self.book.mine

    @property
    def is_stopping(self) -> bool:
        return self.member.is_stopping

    @property
    def is_trusted(self) -> bool:
        return self.member.is_trusted

    def find_tenants(self) -> set[str]:
        """Those that wait or hold something here."""
        return {each.task.tenant for each in self.mine.values()} | self.claims.find_tenants()

    @property
    def instances(self) -> int:
        """How many share the work."""
        return self.member.others + 1

    def why(self, id: str) -> str:
        """One sentence on what a task in the queue waits for."""
        return self.book.why_blocked(id) or f"{id} is next"


def _weigh_alike(tenant: str) -> int:
    return 1


def new_task(**fields: Any) -> Task:
    """A Task from what users give; `needs` as requirements."""
    fields["needs"] = tuple((name, str(mode)) for name, mode in fields["needs"])
    return Task(**fields)
