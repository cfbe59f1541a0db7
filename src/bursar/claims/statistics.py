"""What an instance counts, and who holds and waits for what here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec

from bursar.claims.model import State, Task
from bursar.claims.seen import TaskSeen
from bursar.resource.statistics import counter, gauge, listed

if TYPE_CHECKING:
    from bursar.claims.courier import Instance

LISTED_MAX = 100
"""Holders, and tasks that wait, listed one by one."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A claim or a task: whose it is, and its names. `why`: what it waits for."""

    tenant: str
    names: str
    why: str = ""


class ClaimStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Of this instance: the store knows of the others'."""

    waiting: Annotated[int, gauge("claims and tasks that wait here")]
    held: Annotated[int, gauge("claims and tasks that hold their names, looked after here")]
    instances: Annotated[int, gauge("instances that share the work, this one among them")]
    granted: Annotated[int, counter("claims and tasks granted their names")] = 0
    released: Annotated[int, counter("claims and tasks that gave their names back")] = 0
    deposed: Annotated[int, counter("claims and tasks whose names were taken by force")] = 0
    dead: Annotated[int, counter("tasks given up: they failed, or whoever did them died, too often")] = 0
    retried: Annotated[int, counter("times that a task failed and was to be tried again")] = 0
    kept: Annotated[int, counter("claims and tasks whose holder was gone, and that kept their names")] = 0
    completed: Annotated[int, counter("ends of tasks recorded")] = 0
    late: Annotated[int, counter("ends of tasks that came when another was recorded")] = 0
    handed_over: Annotated[int, counter("times that waiting tasks were left to other instances")] = 0
    races_lost: Annotated[int, counter("transactions that another instance was faster than")] = 0
    grown: Annotated[int, counter("times that one that ran was given more")] = 0
    gave_way: Annotated[int, counter("times that one that ran was told to give way to an older one")] = 0
    moved: Annotated[int, counter("times that units of a counted name came here, or went back")] = 0
    swept: Annotated[int, counter("times that unused names were removed")] = 0
    unreadable: Annotated[int, counter("tasks whose record could not be read")] = 0
    problem: Annotated[str | None, listed("what last went wrong with the store")] = None
    holders: Annotated[Mapping[str, Listed], listed("who holds what, some of them")] = {}
    queue: Annotated[Mapping[str, Listed], listed("who waits for what, some of them")] = {}
    tasks: Annotated[Mapping[str, TaskSeen], listed("tasks at all instances, some of them")] = {}


def count(instance: Instance, tasks: Mapping[str, TaskSeen]) -> ClaimStatistics:
    """What the instance counted up to now."""
    held = {id: mine.task for id, mine in instance.mine.items() if mine.task.state is State.RUNNING}
    waiting = list(instance.queue.entries)
    return ClaimStatistics(
        waiting=len(waiting),
        held=len(held),
        instances=instance.instances,
        problem=instance.member.problem,
        holders={id: _list(held[id]) for id in list(held)[:LISTED_MAX]},
        queue={id: _list(instance.mine[id].task, instance.why(id)) for id in waiting[:LISTED_MAX]},
        tasks=tasks,
        **instance.book.counts,
    )


def _list(task: Task, why: str = "") -> Listed:
    return Listed(tenant=task.tenant, names=", ".join(task.wanted), why=why)
