"""Every operation there is: one table, from which the routes and the OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bursar.api import acquiring, bodies, tasks, telling, terms
from bursar.api.desk import Answered, Call
from bursar.resource.decider import Explanation
from bursar.resource.statistics import Statistics

SMALL_BYTES = 64 * 1024
LARGE_BYTES = 4 * 1024 * 1024

Act = Callable[[Call], Awaitable[Answered]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`problems`: statuses beside those that any operation may answer; `links`: operations on what it
    answers."""

    method: str
    path: str
    name: str
    tag: str
    summary: str
    act: Act
    reply: Any = None
    status: int = 200
    body: Any = None
    body_max: int = SMALL_BYTES
    query: Any = None
    if_match: bool = False
    problems: tuple[int, ...] = ()
    links: tuple[str, ...] = ()


RESOURCE = "/v1/resources/{resource}"
GRANT = "/v1/grants/{id}"
TASK = RESOURCE + "/tasks/{id}"
TENANT = RESOURCE + "/tenants/{tenant:path}"

OPERATIONS = (
    Operation(
        method="POST",
        path=RESOURCE + "/grants",
        name="acquire",
        tag="acquiring",
        summary="Acquire tokens for a tenant, waiting for them if told to",
        act=acquiring.acquire,
        links=("show_grant", "renew", "settle", "release"),
        body=bodies.Acquire,
        reply=bodies.Granted,
        status=201,
        problems=(404, 429),
    ),
    Operation(
        method="POST",
        path=RESOURCE + "/claims",
        name="claim",
        tag="acquiring",
        summary="Claim names, all or none; the holder renews them, or loses them",
        act=acquiring.claim,
        links=("show_grant", "renew", "settle", "release"),
        body=bodies.Claim,
        reply=bodies.Granted,
        status=201,
        problems=(404, 429),
    ),
    Operation(
        method="GET",
        path=GRANT,
        name="show_grant",
        tag="acquiring",
        summary="A grant that is held",
        act=acquiring.show,
        reply=bodies.Granted,
        problems=(404,),
    ),
    Operation(
        method="DELETE",
        path=GRANT,
        name="release",
        tag="acquiring",
        summary="The work is over: all of it was used; a claim's names are free",
        act=acquiring.release,
        status=204,
        problems=(404,),
    ),
    Operation(
        method="POST",
        path=GRANT + "/settle",
        name="settle",
        tag="acquiring",
        summary="The work is over: say what was used; the rest goes back",
        act=acquiring.settle,
        body=bodies.Settle,
        status=204,
        problems=(404, 409),
    ),
    Operation(
        method="POST",
        path=GRANT + "/renew",
        name="renew",
        tag="acquiring",
        summary="The holder is still there",
        act=acquiring.renew,
        body=bodies.Renew,
        reply=bodies.Granted,
        problems=(404,),
    ),
    Operation(
        method="POST",
        path=RESOURCE + "/settlements",
        name="settle_anywhere",
        tag="acquiring",
        summary="Settle a quota's grant by its settle_id, at any node, also after a restart",
        act=acquiring.settle_anywhere,
        body=bodies.Settlement,
        status=204,
        problems=(404,),
    ),
    Operation(
        method="POST",
        path=RESOURCE + "/tasks",
        name="submit_task",
        tag="tasks",
        summary="Put work in the queue, to be begun when its names are free",
        act=tasks.submit,
        links=("show_task", "why_task", "cancel_task"),
        body=bodies.Submit,
        reply=bodies.Submitted,
        status=201,
        problems=(404, 429),
    ),
    Operation(
        method="GET",
        path=RESOURCE + "/tasks",
        name="list_tasks",
        tag="tasks",
        summary="Tasks that are not over",
        act=tasks.list_tasks,
        query=bodies.TaskList,
        reply=bodies.Tasks,
        problems=(404,),
    ),
    Operation(
        method="GET",
        path=TASK,
        name="show_task",
        tag="tasks",
        summary="A task as it stands, or when it is over",
        act=tasks.read,
        query=bodies.TaskWait,
        reply=bodies.Task,
        problems=(404,),
    ),
    Operation(
        method="DELETE",
        path=TASK,
        name="cancel_task",
        tag="tasks",
        summary="Withdraw a task that waits",
        act=tasks.cancel,
        reply=bodies.Cancelled,
        problems=(404, 409),
    ),
    Operation(
        method="GET",
        path=TASK + "/why",
        name="why_task",
        tag="tasks",
        summary="What a task waits for",
        act=tasks.why,
        reply=bodies.Why,
        problems=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/resources",
        name="list_resources",
        tag="reading",
        summary="The resources of this node",
        act=telling.list_resources,
        reply=bodies.Resources,
    ),
    Operation(
        method="GET",
        path=RESOURCE,
        name="show_resource",
        tag="reading",
        summary="One resource",
        act=telling.show_resource,
        reply=bodies.Resource,
        problems=(404,),
    ),
    Operation(
        method="GET",
        path=RESOURCE + "/explanation",
        name="explain",
        tag="reading",
        summary="Why a tenant gets what it gets",
        act=telling.explain,
        query=bodies.ForTenant,
        reply=Explanation,
        problems=(404,),
    ),
    Operation(
        method="GET",
        path=RESOURCE + "/statistics",
        name="statistics",
        tag="reading",
        summary="What is counted, at this node",
        act=telling.count,
        query=bodies.Count,
        reply=Statistics,
        problems=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/nodes",
        name="list_nodes",
        tag="reading",
        summary="The nodes that are up, and which policy each runs",
        act=telling.show_nodes,
        reply=bodies.Nodes,
    ),
    Operation(
        method="GET",
        path=RESOURCE + "/tenants",
        name="list_tenants",
        tag="tenants",
        summary="Tenants that were set by themselves, in pages",
        act=terms.list_tenants,
        query=bodies.TenantList,
        reply=bodies.TenantPage,
        problems=(404,),
    ),
    Operation(
        method="POST",
        path=RESOURCE + "/tenants",
        name="set_tenants",
        tag="tenants",
        summary="Set or remove many tenants",
        act=terms.set_tenants,
        body=bodies.SetTenants,
        body_max=LARGE_BYTES,
        reply=bodies.TenantSet,
        problems=(404,),
    ),
    Operation(
        method="GET",
        path=TENANT,
        name="show_tenant",
        tag="tenants",
        summary="The terms of a tenant, and where they come from",
        act=terms.show_tenant,
        reply=bodies.TenantShown,
        problems=(404,),
    ),
    Operation(
        method="PUT",
        path=TENANT,
        name="set_tenant",
        tag="tenants",
        summary="Set the terms of a tenant",
        act=terms.set_tenant,
        links=("show_tenant", "remove_tenant"),
        body=bodies.Terms,
        reply=bodies.TenantSet,
        problems=(404,),
    ),
    Operation(
        method="DELETE",
        path=TENANT,
        name="remove_tenant",
        tag="tenants",
        summary="Remove a tenant that was set by itself",
        act=terms.remove_tenant,
        reply=bodies.TenantSet,
        problems=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/policy",
        name="show_policy",
        tag="policy",
        summary="The policy in force; ETag is its version",
        act=terms.show_policy,
        reply=bodies.PolicyVersion,
        problems=(404,),
    ),
    Operation(
        method="PUT",
        path="/v1/policy",
        name="apply_policy",
        tag="policy",
        summary="Make a text the policy in force; with If-Match, only if nobody changed it meanwhile",
        act=terms.apply,
        links=("show_policy_version",),
        body=bodies.PolicyText,
        body_max=LARGE_BYTES,
        reply=bodies.PolicyVersion,
        if_match=True,
        problems=(409, 412),
    ),
    Operation(
        method="POST",
        path="/v1/policy/proposals",
        name="propose_policy",
        tag="policy",
        summary="What a text would change, and whether it can be taken over live",
        act=terms.propose,
        body=bodies.PolicyText,
        body_max=LARGE_BYTES,
        reply=bodies.PolicyProposal,
    ),
    Operation(
        method="POST",
        path="/v1/policy/rollback",
        name="roll_back_policy",
        tag="policy",
        summary="Make an earlier version the policy in force again, as a new version",
        act=terms.roll_back,
        body=bodies.Rollback,
        reply=bodies.PolicyVersion,
        problems=(404, 409, 412),
    ),
    Operation(
        method="GET",
        path="/v1/policy/versions",
        name="list_policy_versions",
        tag="policy",
        summary="The versions that are kept, the newest first",
        act=terms.list_versions,
        reply=bodies.PolicyVersions,
    ),
    Operation(
        method="GET",
        path="/v1/policy/versions/{number:int}",
        name="show_policy_version",
        tag="policy",
        summary="One version",
        act=terms.show_version,
        reply=bodies.PolicyVersion,
        problems=(404,),
    ),
)
