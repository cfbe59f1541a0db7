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

import heapq
from typing import Any

from bursar.claims.ground import ASK_NS, FEW_TASKS, LOOK_NS, LOOK_PARTS, RETRY_NS, TEND_NS
from bursar.claims.model import State, Task
from bursar.claims.sweeping import Sweeping
from bursar.errors import FormatError, StoreUnknownError, Unknown
from bursar.world import SECOND_NS


class Instance(Sweeping):
    """See above. `start` it, then `submit`; claims are asked for with `claims.ask`."""

    async def start(self) -> None:
        """Set the store up where that is needed, and begin to grant."""
        await self._join()
        self.spawn(self._pump(), "pump")
        self.spawn(self._look_after(), "look")
        self.spawn(self._tend(), "tend")

    def stop_taking(self) -> int:
        """Grant no more tasks; those that wait are left to others. Returns how many are being done."""
        self._draining = True
        self._running_max = 0
        self._look.set()
        return len(self._running)

    async def drain(self, wait_ns: int) -> None:
        """Wait until what is being done is over, for at most so long."""
        assert self._draining, "stop taking first"
        until_ns = self.world.clock.now() + wait_ns
        while self._running and self.world.clock.now() < until_ns:
            await self.world.clock.sleep(RETRY_NS)

    async def _tend(self) -> None:
        """Aging, deadlines, and what nobody told of."""
        rounds = 0
        while not self.is_stopping:
            await self.world.clock.sleep(TEND_NS)
            rounds += 1
            if self.queue.age(self.world.clock.now() - self._aging_ns):
                self._kick.set()
            self._note_reservations()
            self._expire_tasks()
            if rounds % (ASK_NS // TEND_NS) == 0 and self._is_idle() and any(self._foreign.values()):
                self.spawn(self._ask(), "ask")
            if rounds % (LOOK_NS // TEND_NS + 1) == 0:
                self._tend_seldom(rounds // (LOOK_NS // TEND_NS + 1))
            if rounds % (self._names_sweep_ns // TEND_NS + 1) == 0 and self._sweeps():
                self.spawn(self._sweep_names(), "sweep")

    def _tend_seldom(self, turn: int) -> None:
        shards = self.layout.task_shards
        parts = LOOK_PARTS if self._largest_shard > FEW_TASKS else 1
        self._shards.update(dict.fromkeys(shards[turn % parts :: parts]))
        self._look.set()
        self._check_reservations()
        if self._sweeps():
            self.spawn(self._sweep_tasks(), "sweep")

    def _expire_tasks(self) -> None:
        wall_ns = self.world.clock.wall()
        while self._deadlines and self._deadlines[0][0] < wall_ns:
            _, id = heapq.heappop(self._deadlines)
            if id in self.mine and self.mine[id].task.state is State.PENDING:
                self.spawn(self._expire_task(id), "deadline")

    async def _expire_task(self, id: str) -> None:
        """Too late for it to begin."""
        try:
            await self.withdraw_stored(id, "expired")
        except (StoreUnknownError, Unknown, FormatError) as error:
            self.problem = str(error)
            if id in self.mine:
                heapq.heappush(self._deadlines, (self.world.clock.wall() + SECOND_NS, id))

    def _sweeps(self) -> bool:
        """One instance is enough; which one does not matter, nor that it is one."""
        return not self._others or self._instances[:1] == [self._node]


def new_task(**fields: Any) -> Task:
    """A Task from what users give; `needs` as requirements."""
    fields["needs"] = tuple((name, str(mode)) for name, mode in fields["needs"])
    return Task(**fields)
