"""What was learned of how long tasks take: shared with the other instances, and used for forecasts."""

from __future__ import annotations

from collections.abc import Sequence

from bursar.claims.durations import Running, Waiting, forecast, seconds_left
from bursar.claims.instance_book import InstanceBook
from bursar.claims.limits import Lost
from bursar.claims.membership import Membership
from bursar.claims.model import State, Task
from bursar.claims.queue import Order, WeightOf
from bursar.claims.reader import Reader, Record
from bursar.errors import NodeMissingError, SessionExpiredError, StoreUnknownError
from bursar.world import SECOND_NS

FORECAST_MAX = 2_000
"""More tasks than these are not played through for one that asks when it starts."""


class Learning:
    """Nothing rests on it: what cannot be read or written now is at the next time."""

    def __init__(
        self, member: Membership, book: InstanceBook, reader: Reader, order: Order, weight_of: WeightOf
    ) -> None:
        self._member = member
        self._store = member.world.store
        self._clock = member.world.clock
        self._book = book
        self._reader = reader
        self._order = order
        self._weight_of = weight_of

    async def share(self) -> None:
        """Tell the others, and hear of them."""
        path, durations = self._member.layout.durations, self._book.durations
        durations.is_new = False
        try:
            await self._store.ensure(path)
            data, stat = await self._store.get(path)
            durations.merge(data)
            await self._store.set(path, durations.encode(), stat.version)
        except (*Lost, StoreUnknownError, SessionExpiredError) as error:
            durations.is_new = True
            self._member.problem = str(error)

    async def forecast(self, id: str, records: Sequence[Record]) -> float | None:
        """In how many seconds a task starts; None where that is not known of all that stand before it."""
        if len(records) > FORECAST_MAX:
            return None
        try:
            data, _ = await self._reader.repeat(lambda: self._store.get(self._member.layout.durations))
            self._book.durations.merge(data)
        except NodeMissingError:
            pass  # nobody has told of any yet
        waiting, running, wall_ns = [], [], self._clock.wall()
        for task, _, created in records:
            seconds = self._book.durations.expect(task.function, task.tenant)
            if seconds is None:
                return None
            if task.state is State.PENDING:
                after_s = (task.not_before - wall_ns) / SECOND_NS
                waiting.append(_wait(task, created, seconds, after_s))
            elif task.state is State.RUNNING:
                left_s = seconds_left(seconds, task.begun, wall_ns)
                running.append(Running(task.id, task.requirements, task.counts, left_s))
        return forecast(waiting, running, self._order, self._book.capacities, self._weight_of, id)


def _wait(task: Task, created: int, seconds: float, after_s: float) -> Waiting:
    needs, counts = task.requirements, task.counts
    return Waiting(task.id, needs, counts, task.tenant, task.priority, created, seconds, after_s)
