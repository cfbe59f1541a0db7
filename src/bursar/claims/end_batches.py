"""Ends that are ready together go to the store together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bursar.claims.book import ClaimBook, Plan
from bursar.claims.limits import BATCH_OPERATIONS, IN_FLIGHT_MAX, SMALL_IN_FLIGHT_MAX, Lost
from bursar.claims.membership import Membership
from bursar.errors import BursarError, FormatError, StoreError, TooLargeError


@dataclass(slots=True)
class End:
    """The end of a task on its way to the store."""

    plan: Plan
    sent: asyncio.Future[None]


class EndBatches:
    """Each end is answered for itself: if one of a batch was taken away meanwhile, all go one by one."""

    def __init__(self, member: Membership, plans: ClaimBook) -> None:
        self._member = member
        self._plans = plans
        self._ends: list[End] = []
        self._in_flight = 0

    async def send(self, plan: Plan) -> None:
        """Raises what the store answers to this one."""
        end = End(plan, asyncio.get_running_loop().create_future())
        self._ends.append(end)
        if len(self._ends) == 1:
            self._member.spawn(self._send_all(), "ends")
        await end.sent

    async def _send_all(self) -> None:
        # Let everything that ends in this turn of the loop join the same transaction.
        await asyncio.sleep(0)
        while self._ends and self._in_flight < IN_FLIGHT_MAX:
            full, batch = self._cut()
            if not full and self._in_flight >= SMALL_IN_FLIGHT_MAX:
                return
            self._ends = self._ends[len(batch) :]
            self._in_flight += 1
            self._member.spawn(self._commit(batch), "ends")

    def _cut(self) -> tuple[bool, list[End]]:
        """As many as fit one transaction, and whether they fill it."""
        count, operations = 0, 0
        room = self._member.world.store.operations_max
        while count < len(self._ends) and operations < BATCH_OPERATIONS:
            more = len(self._ends[count].plan.operations) + 1  # with the check of its floor
            if count and operations + more > room:
                return True, self._ends[:count]
            operations += more
            count += 1
        return operations >= BATCH_OPERATIONS, self._ends[:count]

    async def _commit(self, batch: list[End]) -> None:
        try:
            await self._member.world.store.transact(self._plans.join([end.plan for end in batch]))
            answer: BursarError | None = None
        except (StoreError, FormatError) as error:
            answer = error
        self._in_flight -= 1
        if self._ends:
            self._member.spawn(self._send_all(), "ends")
        if len(batch) > 1 and isinstance(answer, (*Lost, TooLargeError)):
            for end in batch:
                self._member.spawn(self._commit([end]), "ends")
                self._in_flight += 1
            return
        for end in batch:
            if end.sent.done():
                continue  # nobody waits any more
            if answer is None:
                end.sent.set_result(None)
            else:
                end.sent.set_exception(answer)
