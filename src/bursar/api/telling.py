"""Explain, statistics, resources, nodes: what can be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import msgspec

from bursar.api import bodies
from bursar.api.desk import Answered, Call
from bursar.fleet.layout import list_nodes
from bursar.resource.door import Resource
from bursar.resource.guarded import Guarded
from bursar.resource.statistics import Statistics


async def list_resources(call: Call) -> Answered:
    """Those that the caller may read."""
    found = [door for name, door in call.desk.resources.items() if call.caller.may_some("read", name)]
    if not found:
        call.check("read")
    return Answered(bodies.Resources(resources=tuple(map(_describe, found))))


async def show_resource(call: Call) -> Answered:
    if not call.caller.may_some("read", call.resource):
        call.check("read", call.resource)
    return Answered(_describe(call.desk.find(call.resource)))


def _describe(door: Resource) -> bodies.Resource:
    offers = door.decider.offers
    return bodies.Resource(
        name=door.name,
        kind=door.kind,
        shadow=door.policy is not None and door.policy.shadow,
        ready=door.decider.is_ready(),
        keys=offers.keys,
        names=offers.names,
        settles=offers.settles,
    )


async def explain(call: Call) -> Answered:
    call.check("read", call.resource, call.query.tenant)
    return Answered(await call.desk.find(call.resource).explain(call.query.tenant))


async def count(call: Call) -> Answered:
    """Each table is cut to so many rows; of one tenant there are its own rows and the sums."""
    tenant = call.query.tenant
    if tenant is not None:
        call.check("read", call.resource, tenant)
    found = await Guarded(call.desk.find(call.resource), call.caller).statistics()
    part = _cut(found.part, tenant, call.query.most)
    whole: Statistics = _cut(found, tenant, call.query.most)
    return Answered(msgspec.structs.replace(whole, part=part, alerts=() if tenant else found.alerts))


def _cut(found: Any, tenant: str | None, most: int) -> Any:
    tables = {
        name: table for name in found.__struct_fields__ if isinstance(table := getattr(found, name), Mapping)
    }
    hints = get_type_hints(type(found), include_extras=True) if tables else {}
    cut = {name: _cut_table(table, hints[name], tenant, most) for name, table in tables.items()}
    return msgspec.structs.replace(found, **cut)


def _cut_table(table: Mapping[str, Any], hint: Any, tenant: str | None, most: int) -> Mapping[str, Any]:
    if tenant is None:
        return table if len(table) <= most else dict(list(table.items())[:most])
    metas = [meta for meta in get_args(hint) if isinstance(meta, msgspec.Meta) and meta.extra]
    by_tenant = any((meta.extra or {}).get("label") == "tenant" for meta in metas)
    return {tenant: table[tenant]} if by_tenant and tenant in table else {}


async def show_nodes(call: Call) -> Answered:
    call.check("read")
    up = await list_nodes(call.desk.world.store)
    nodes = [
        bodies.Node(
            name=node.name, address=node.address, version=node.version, build=node.build, problem=node.problem
        )
        for node in up
    ]
    return Answered(bodies.Nodes(nodes=tuple(nodes)))
