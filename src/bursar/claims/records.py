"""Looking at tasks and claims, whoever looks after them: what the store has of them, for people."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import Any, TypeVar, get_args

from bursar.claims.courier import Instance
from bursar.claims.layout import instance_node
from bursar.claims.model import Mark, Outcome, State, Task, decode_mark
from bursar.claims.reader import READS_AT_ONCE, Record
from bursar.claims.requirements import check_claim_name
from bursar.errors import NodeMissingError, Refused, UsageError
from bursar.policy.values import ClaimPolicy
from bursar.resource import check_name
from bursar.world import SECOND_NS

HISTORY_READ_MAX = 20_000
"""Tasks that are over, looked at for one answer."""

ROWS_MAX = 1_000

T = TypeVar("T")


class Records:
    """Reads only. Raises StoreUnknownError, SessionExpiredError, FormatError."""

    def __init__(self, instance: Instance, policy: ClaimPolicy) -> None:
        self.policy = policy
        self._instance = instance
        self._reader = instance.reader
        self._layout = instance.layout
        self._store = instance.world.store
        self._clock = instance.world.clock

    async def find(self, id: str) -> Task | None:
        """A task as it stands, also when it is over; None for one that is not known (any more)."""
        found = await self._reader.read_task(check_id(id))
        return found[0] if found is not None else await self._reader.read_released(id)

    async def get(self, id: str) -> Task:
        """Raises Refused for an unknown one."""
        task = await self.find(id)
        if task is None:
            raise Refused(f"there is no task {id}, or it was over long ago")
        return task

    async def tell(self, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """In plain values; of those that run also how far they are, and whether who does them lives."""
        running = [task for task in tasks if task.state is State.RUNNING]
        marks = dict(
            zip((task.id for task in running), await self._all(running, self._read_mark), strict=True)
        )
        alive = await self._read_alive() if running else _Alive(())
        told = []
        for task in tasks:
            row = describe(task)
            if task.state is State.RUNNING:
                mark = marks[task.id]
                row["alive"] = task.holder in alive
                row["note"] = mark.note if mark is not None and mark.attempt == task.attempt else ""
            told.append(row)
        return told

    async def _read_mark(self, task: Task) -> Mark | None:
        path = self._layout.busy(task.id)
        try:
            data, _ = await self._reader.repeat(lambda: self._store.get(path))
        except NodeMissingError:
            return None
        return decode_mark(path, data)

    async def _read_alive(self) -> _Alive:
        return _Alive(await self._store.children(self._layout.instances))

    async def _all(self, items: Sequence[Any], read: Callable[[Any], Awaitable[T]]) -> list[T]:
        found: list[T] = []
        for first in range(0, len(items), READS_AT_ONCE):
            found += await asyncio.gather(*map(read, items[first : first + READS_AT_ONCE]))
        return found

    async def waiting_and_running(self) -> list[Record]:
        """Every task that is not over, in the order in which the store took them in."""
        found = await self._all(await self._list("tasks", self._layout.task_shards), self._reader.read_record)
        return sorted((each for each in found if each is not None), key=lambda each: each.created)

    async def dead(self) -> list[Task]:
        """Every task that was given up, the oldest first."""
        found = await self._all(await self._list("dead", self._layout.task_shards), self._reader.read_dead)
        return sorted((pair[0] for pair in found if pair is not None), key=lambda task: (task.ended, task.id))

    async def over(self, wanted: Callable[[Task], bool]) -> list[Task]:
        """Tasks that are over, the latest first, of as many as are looked at for one answer."""
        ids = await self._list("released", self._layout.released_shards)
        found = await self._all(ids[:HISTORY_READ_MAX], self._reader.read_released)
        tasks = [task for task in found if task is not None and wanted(task)]
        return sorted(tasks, key=lambda task: (-task.ended, task.id))

    async def some(
        self, kind: str, most: int, shards: Sequence[str] | None = None, known: Container[str] = ()
    ) -> list[Task]:
        """At most so many of the "tasks" that are not over, of the "dead" or of those "released"."""
        ids = await self._list(kind, self._layout.task_shards if shards is None else shards)
        wanted = [id for id in ids if id not in known][:most]
        if kind == "tasks":
            return [
                each.task for each in await self._all(wanted, self._reader.read_record) if each is not None
            ]
        if kind == "dead":
            return [pair[0] for pair in await self._all(wanted, self._reader.read_dead) if pair is not None]
        return [task for task in await self._all(wanted, self._reader.read_released) if task is not None]

    async def _list(self, kind: str, shards: Iterable[str]) -> list[str]:
        folders = [f"{self._layout.root}/{kind}/{shard}" for shard in shards]
        return [id for ids in await self._all(folders, self._store.children) for id in ids]

    async def holders(self, of: str) -> list[Task]:
        """Who holds a name now."""
        check_name("of", of)
        check_claim_name(of)
        (view,) = (await self._reader.read_names([of])).values()
        ids = [view.holding.owner] if view.holding.owner else list(view.sharers)
        found = [await self._reader.read_task(id) for id in ids]
        return [pair[0] for pair in found if pair is not None]

    # Why

    async def why(self, id: str) -> list[str]:
        """What a task waits for, or who does it, in sentences."""
        task = await self.get(id)
        asked = await self._store.exists(self._layout.cancel(id)) is not None
        lines = ["it was asked to be cancelled, and has not stopped yet"] if asked else []
        if task.state is State.RUNNING:
            return await self._why_running(task) + lines
        if task.state is not State.PENDING:
            return [_say_end(task)]
        pause_ns = task.not_before - self._clock.wall()
        if pause_ns > 0:
            return [say_failure(task), f"it is tried again in {pause_ns / SECOND_NS:.1f} s", *lines]
        if task.failures:
            lines.append(say_failure(task))
        return [*await self._why_waiting(task), *lines]

    async def _why_running(self, task: Task) -> list[str]:
        (told,) = await self.tell([task])
        what = "holds it" if task.is_claim else "does it"
        holder, deaths = task.holder.rpartition(".")[0] or task.holder, task.attempt - task.failures - 1
        lines = [f"{holder} {what}" + ("" if task.is_claim else f", attempt {task.attempt}")]
        if not told["alive"]:
            lines.append(f"{holder} is gone: {self._say_dead_holder(task)}")
        if deaths > 0 and not task.is_claim:
            lines.append(f"whoever did it before died ({deaths} time{'s' * (deaths > 1)})")
        if told["note"]:
            lines.append(f"it says: {told['note']}")
        if task.asks:
            more = ", ".join(f"{name}:{mode}" for name, mode in task.asks)
            lines.append(f"it waits for more: {more}")
        return lines + ([say_failure(task)] if task.failures else [])

    def _say_dead_holder(self, task: Task) -> str:
        how = self.policy.dead_holder
        if how == "keep" or (how == "auto" and task.is_claim):
            return "what it held is kept until `bursar claims release` takes it away"
        return (
            "its names go to whoever waits"
            if how == "fail" or task.is_claim
            else "another one tries it again"
        )

    async def _why_waiting(self, task: Task) -> list[str]:
        lines = []
        views = await self._reader.read_names(name for name, _ in task.needs)
        for name, mode in task.needs:
            view = views[name]
            if view.holding.owner:
                lines.append(f"{name}:{mode} waits for {view.holding.owner}, which holds it exclusively")
            elif mode == "E" and view.sharers:
                lines.append(f"{name}:{mode} waits for {', '.join(list(view.sharers)[:5])}, who share it")
            elif view.holding.reserved not in ("", task.id):
                lines.append(f"{name}:{mode} is reserved for {view.holding.reserved}, which waited too long")
        records = await self.waiting_and_running()
        lines += self._why_short(task, [record.task for record in records])
        if not lines and not task.is_claim and not await self._has_workers():
            lines.append("everything that it needs is free, but no worker is running: start `bursar work`")
        waiting = [record for record in records if record.task.state is State.PENDING]
        place = {each.task.id: (-each.task.priority, each.created) for each in waiting}
        before = [other for other in place if place[other] < place.get(task.id, (0, 0))]
        ahead = f"{len(before) or 'no'} task{'s' * (len(before) != 1)}"
        lines.append(f"{ahead} ahead of it, whatever names they need")
        if (seconds := await self._instance.forecast(task.id, records)) is not None:
            lines.append(
                f"it should start in about {seconds:.0f} s, if tasks take as long as they did before"
            )
        return lines

    async def _has_workers(self) -> bool:
        return any(node.endswith("+") for node in await self._store.children(self._layout.instances))

    def _why_short(self, task: Task, known: Sequence[Task]) -> list[str]:
        """Of counted names: who has those that it lacks."""
        lines = []
        for name, units in task.counts:
            held = {each.id: dict(each.counts).get(name, 0) for each in known if each.has_units}
            most, used = self.policy.counted.get(name, 0), sum(held.values())
            if used + units > most:
                holders = ", ".join([f"{id} ({part})" for id, part in held.items() if part][:5])
                lines.append(f"{name}:{units} waits: of {most}, {used} are with {holders or 'nobody'}")
        return lines


class _Alive:
    """Instances that are there, by the name that they write as holders."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._nodes = dict.fromkeys(nodes)

    def __contains__(self, holder: object) -> bool:
        name = str(holder)
        return any(instance_node(name, works=works) in self._nodes for works in (True, False))


def _say_end(task: Task) -> str:
    said = f"{task.id} is {task.state}" + (f" ({task.outcome})" if task.outcome else "")
    return (
        f"{said}: {last_line(task.result.decode('utf-8', 'replace'))}"
        if task.outcome in ("failed", "dead") and task.result
        else said
    )


def say_failure(task: Task) -> str:
    times = "once" if task.failures == 1 else f"{task.failures} times"
    return f"it failed {times}: {last_line(task.failure)}"


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""


def describe(task: Task) -> dict[str, Any]:
    """A task in plain values; times in seconds of the wall clock, 0 for none."""
    return {
        "id": task.id,
        "tenant": task.tenant,
        "state": str(task.state),
        "outcome": task.outcome,
        "needs": task.wanted,
        "priority": task.priority,
        "attempt": task.attempt,
        "holder": task.holder,
        "claim": task.is_claim,
        "result": task.result,
        "function": task.function,
        "retries": task.retries,
        "failures": task.failures,
        "failure": task.failure,
        "submitted": task.submitted / SECOND_NS,
        "not_before": task.not_before / SECOND_NS,
        "ended": task.ended / SECOND_NS,
        "alive": None,
        "note": "",
    }


def check_id(id: object) -> str:
    check_name("id", id)
    assert isinstance(id, str), "checked"
    if "/" in id:
        raise UsageError(f"{id[:60]!r} is no task's id")
    return id


def check_one_of(what: str, value: str | None, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        listed = ", ".join(f'"{each}"' for each in known)
        raise UsageError(f"{what} is one of {listed}, not {value[:60]!r}")


def make_filter(
    tenant: str | None, state: str | None, outcome: str | None, of: str | None, function: str | None
) -> Callable[[Task], bool]:
    """Tasks that are all of what is given. `of` is a name that they need."""
    for what, value in (
        ("tenant", tenant),
        ("state", state),
        ("outcome", outcome),
        ("of", of),
        ("function", function),
    ):
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{what} is text, not {value!r}")
    check_one_of("state", state, list(State))
    check_one_of("outcome", outcome, get_args(Outcome))

    def is_wanted(task: Task) -> bool:
        return (
            tenant in (None, task.tenant)
            and state in (None, str(task.state))
            and outcome in (None, task.outcome)
            and function in (None, task.function)
            and (of is None or of in task.names or any(of == counted for counted, _ in task.counts))
        )

    return is_wanted


def check_most(most: object) -> int:
    if not isinstance(most, int) or not 1 <= most <= ROWS_MAX:
        raise UsageError(f"most is a number from 1 to {ROWS_MAX}, not {most!r}")
    return most
