"""Tasks of a claim: work that runs when its names are granted."""

from __future__ import annotations

from typing import Any

from bursar.api import bodies
from bursar.api.desk import Answered, Call
from bursar.api.errors import MissingError, StateError
from bursar.errors import Refused

HISTORY_MAX = 1000
STEP_S = 1.0
"""A task is waited for in steps, so that the watch of one that nobody asks for any more is closed."""


async def submit(call: Call) -> Answered:
    body: bodies.Submit = call.body
    call.check("acquire", call.resource, body.tenant)
    id = await call.desk.find(call.resource).verb(
        "submit",
        tenant=body.tenant,
        names=list(body.names),
        payload=body.payload.encode(),
        key=body.key,
        priority=body.priority,
        deadline=body.deadline,
        retries=body.retries,
        backoff=body.backoff,
    )
    at = f"/v1/resources/{call.resource}/tasks/{id}"
    return Answered(bodies.Submitted(id=id), 201, [(b"location", at.encode("ascii"))])


async def list_tasks(call: Call) -> Answered:
    query = call.query
    filters = {"tenant": query.tenant, "state": query.state, "of": query.of, "function": query.function}
    return await _list(call, "tasks", **filters)


async def list_history(call: Call) -> Answered:
    query = call.query
    filters = {"tenant": query.tenant, "outcome": query.outcome, "of": query.of, "function": query.function}
    return await _list(call, "history", most=HISTORY_MAX, **filters)


async def list_dead(call: Call) -> Answered:
    return await _list(call, "dead")


async def _list(call: Call, verb: str, **filters: Any) -> Answered:
    """Those of tenants that the caller may read."""
    if not call.caller.may_some("read", call.resource):
        call.check("read", call.resource)
    found = await call.desk.find(call.resource).verb(verb, **filters)
    seen = [task for task in found if call.may("read", call.resource, task["tenant"])]
    most = call.query.most
    tasks = tuple(_describe(task) for task in seen[:most])
    return Answered(bodies.Tasks(tasks=tasks, more=len(seen) > most))


async def wait(call: Call) -> Answered:
    """Of the tasks that the caller may read. What is not known is over, as far as anybody can tell."""
    if not call.caller.may_some("read", call.resource):
        call.check("read", call.resource)
    told = await call.desk.wait(_wait_for_some(call), call.gone)
    over = [each for each in told if not each["tenant"] or call.may("read", call.resource, each["tenant"])]
    found = tuple(bodies.Over(id=each["id"], outcome=each["outcome"]) for each in over)
    return Answered(bodies.TasksOver(over=found, more=len(found) < len(dict.fromkeys(call.body.ids))))


async def _wait_for_some(call: Call) -> list[dict[str, Any]]:
    body: bodies.WaitForTasks = call.body
    door, left_s = call.desk.find(call.resource), body.wait
    ids = dict.fromkeys(body.ids)
    needed = len(ids) if body.count is None else min(body.count, len(ids))
    while True:
        step_s = min(STEP_S, left_s)
        told: list[dict[str, Any]] = await door.verb(
            "wait_for_some", ids=list(ids), count=needed, timeout=step_s
        )
        left_s -= step_s
        if len(told) >= needed or left_s <= 0:
            return told


async def read(call: Call) -> Answered:
    task = await _find(call, "read")
    if call.query.wait and task["state"] != "released":
        task = await call.desk.wait(_wait_for(call, call.query.wait), call.gone)
    return Answered(_describe(task))


async def _wait_for(call: Call, wait_s: float) -> dict[str, Any]:
    door, id, left_s = call.desk.find(call.resource), call.path["id"], wait_s
    while True:
        step_s = min(STEP_S, left_s)
        task: dict[str, Any] = await door.verb("wait_for", id=id, timeout=step_s)
        left_s -= step_s
        if task["state"] == "released" or left_s <= 0:
            return task


async def why(call: Call) -> Answered:
    await _find(call, "read")
    lines = await call.desk.find(call.resource).verb("why", id=call.path["id"])
    return Answered(bodies.Why(sentences=tuple(lines)))


async def cancel(call: Call) -> Answered:
    await _find(call, "acquire")
    id = call.path["id"]
    asked = call.desk.find(call.resource).verb("cancel", id=id, wait=call.query.wait)
    try:
        outcome = await call.desk.wait(asked, call.gone)
    except Refused as refused:
        raise StateError(refused.why) from refused
    return Answered(bodies.Cancelled(id=id, outcome=outcome))


async def retry(call: Call) -> Answered:
    return await _change_dead(call, "retry")


async def discard(call: Call) -> Answered:
    return await _change_dead(call, "discard")


async def _change_dead(call: Call, verb: str) -> Answered:
    await _find(call, "acquire")
    try:
        await call.desk.find(call.resource).verb(verb, id=call.path["id"])
    except Refused as refused:
        raise StateError(refused.why) from refused
    return Answered(status=204)


async def _find(call: Call, verb: Any) -> dict[str, Any]:
    """Whose it is must be known before it is known who may see it; a stranger learns no more of it than
    of one that is not there."""
    id = call.path["id"]
    task = await call.desk.find(call.resource).verb("read", id=id)
    if task is None:
        call.check(verb, call.resource)
        raise MissingError(f"there is no task {id[:100]}, or it was over long ago")
    call.check(verb, call.resource, task["tenant"])
    found: dict[str, Any] = task
    return found


def _describe(task: dict[str, Any]) -> bodies.Task:
    return bodies.Task(
        **{**task, "needs": tuple(task["needs"]), "result": task["result"].decode("utf-8", "replace")}
    )
