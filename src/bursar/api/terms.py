"""Tenants and the policy: what a fleet was told, and telling it something else."""

from __future__ import annotations

import msgspec

from bursar.api import bodies
from bursar.api.desk import Answered, Call
from bursar.api.errors import BodyError, MissingError
from bursar.errors import UsageError
from bursar.fleet import changes, documents, tenants
from bursar.fleet.documents import Document
from bursar.fleet.layout import Version
from bursar.world import SECOND_NS, Store

# -- tenants


async def list_tenants(call: Call) -> Answered:
    """Those that the caller may read of."""
    if not call.caller.may_some("read", call.resource):
        call.check("read", call.resource)
    call.desk.find(call.resource)
    store, query = call.desk.world.store, call.query
    found, further = await tenants.list_tenants(store, call.resource, shard=query.page, most=query.most)
    page = {name: dict(terms) for name, terms in found.items() if call.may("read", call.resource, name)}
    return Answered(bodies.TenantPage(tenants=page, next=further))


async def show_tenant(call: Call) -> Answered:
    tenant = call.path["tenant"]
    call.check("read", call.resource, tenant)
    door = call.desk.find(call.resource)
    terms = await tenants.show_tenant(call.desk.world.store, call.resource, tenant)
    if terms is not None:
        return Answered(bodies.TenantShown(tenant=tenant, terms=dict(terms), source="tenant"))
    found = door.policy.find(tenant) if door.policy is not None else None
    if door.policy is None or found is None:
        raise MissingError(f"{call.resource} has no tenant {tenant[:100]!r}")
    source = "policy" if tenant in door.policy.tenants else "template"
    return Answered(bodies.TenantShown(tenant=tenant, terms=msgspec.to_builtins(found), source=source))


async def set_tenant(call: Call) -> Answered:
    return await _set(call, {call.path["tenant"]: call.body})


async def remove_tenant(call: Call) -> Answered:
    tenant = call.path["tenant"]
    call.check("change", call.resource, tenant)
    call.desk.find(call.resource)
    if await tenants.show_tenant(call.desk.world.store, call.resource, tenant) is None:
        raise MissingError(f"{call.resource} has no tenant {tenant[:100]!r} that was set by itself")
    return await _set(call, {tenant: None})


async def set_tenants(call: Call) -> Answered:
    return await _set(call, call.body.tenants)


async def _set(call: Call, wanted: dict[str, tenants.Terms | None]) -> Answered:
    for tenant in wanted:
        call.check("change", call.resource, tenant)
    call.desk.find(call.resource)
    world = call.desk.world
    head = await tenants.set_tenants(
        world.store, call.resource, wanted, by=call.caller.name, at_ns=world.clock.wall()
    )
    return Answered(bodies.TenantSet(version=head.version, changed=len(wanted)))


# -- policy


async def show_policy(call: Call) -> Answered:
    call.check("read")
    document = await documents.read_document(call.desk.world.store)
    if document is None:
        raise MissingError("no policy was applied yet")
    return _show(document)


async def show_version(call: Call) -> Answered:
    call.check("read")
    return _show(await _find_version(call.desk.world.store, call.path["number"]))


async def _find_version(store: Store, number: int) -> Document:
    try:
        document = await documents.read_document(store, number)
    except UsageError as error:
        raise MissingError(str(error)) from error
    assert document is not None, "a version was named"
    return document


async def list_versions(call: Call) -> Answered:
    call.check("read")
    found = await documents.list_versions(call.desk.world.store)
    return Answered(bodies.PolicyVersions(versions=tuple(_describe(version) for version in found)))


async def propose(call: Call) -> Answered:
    call.check("read")
    proposal = await changes.propose(call.desk.world.store, call.body.text)
    found = tuple(
        bodies.PolicyChange(
            key=each.key, before=each.before, after=each.after, possible=each.possible, why=each.why
        )
        for each in proposal.changes
    )
    return Answered(
        bodies.PolicyProposal(
            possible=proposal.possible, expected=proposal.expected, changes=found, problems=proposal.problems
        )
    )


async def apply(call: Call) -> Answered:
    call.check("change")
    world = call.desk.world
    version = await changes.apply(
        world.store,
        call.body.text,
        by=call.caller.name,
        at_ns=world.clock.wall(),
        note=call.body.note,
        expected=_read_expected(call),
    )
    return _tell(version)


async def roll_back(call: Call) -> Answered:
    call.check("change")
    world, number = call.desk.world, call.body.number
    await _find_version(world.store, number)
    version = await changes.rollback(world.store, number, by=call.caller.name, at_ns=world.clock.wall())
    return _tell(version)


def _read_expected(call: Call) -> int | None:
    """The version that the change was made from: what ETag said."""
    text = call.headers.get("if-match", "*").strip()
    if text == "*":
        return None
    number = text.strip('"')
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        raise BodyError('If-Match is a version as ETag says it, such as "7"', 400)
    return int(number)


def _show(document: Document) -> Answered:
    return _tell(document.version, document.text)


def _tell(version: Version, text: str | None = None) -> Answered:
    etag = f'"{version.number}"'.encode("ascii")
    return Answered(_describe(version, text), fields=[(b"etag", etag)])


def _describe(version: Version, text: str | None = None) -> bodies.PolicyVersion:
    return bodies.PolicyVersion(
        number=version.number,
        by=version.by,
        at=version.at_ns / SECOND_NS,
        origin=version.origin,
        note=version.note,
        text=text,
    )
