"""Tenants that are set one by one, while it runs, beside those of the policy's text.

They are kept in shards, hundreds of tenants to a node of the store, with one index a resource that
says how often each shard was changed: whoever follows reads only what is new. Every change sets the
head too, so that it counts as a change of terms (`Fleet.guards`). A tenant belongs to the text or is
set here, never both.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bursar.decoding import make_reader
from bursar.errors import FormatError, NodeExistsError, NodeMissingError, UsageError, VersionError
from bursar.fleet import audit, layout
from bursar.fleet.documents import Document, read_document, read_head
from bursar.fleet.layout import HEAD, SHARDS, TENANTS, Head, Index
from bursar.policy import ResourcePolicy, build
from bursar.policy.values import Table, is_template
from bursar.world import TRANSACTION_MAX_BYTES, Create, Operation, Set, Store

Terms = Mapping[str, Any]
"""A tenant's terms as one would write them in TOML: {"limit": "60k/s"}."""

ROOM_BYTES = TRANSACTION_MAX_BYTES // 2
BESIDES = 6
"""Operations of a change besides the tenants' own: the index, made or set, the head, the audit."""

AT_ONCE_MAX = 10_000
"""Tenants of one call."""

TRIES = 20
NAMED_IN_AUDIT = 5

_encode = msgspec.msgpack.Encoder().encode
_decode = make_reader(dict[str, dict[str, Any]], "list of tenants")


def shard_of(tenant: str) -> int:
    return zlib.crc32(tenant.encode()) % SHARDS


def index_path(resource: str) -> str:
    return f"{TENANTS}/{resource}"


def shard_path(resource: str, shard: int) -> str:
    return f"{TENANTS}/{resource}/{shard:03d}"


NO_TENANTS = Index(changes=(0,) * SHARDS, sizes=(0,) * SHARDS)


async def read_index(store: Store, resource: str) -> Index:
    """Raises FormatError."""
    found = await layout.fetch(store, index_path(resource), Index)
    if found is None:
        return NO_TENANTS
    if not len(found[0].changes) == len(found[0].sizes) == SHARDS:
        raise FormatError(f"the index of {resource}'s tenants in the store has not {SHARDS} shards")
    return found[0]


async def read_shard(store: Store, resource: str, shard: int) -> dict[str, dict[str, Any]]:
    try:
        data, _ = await store.get(shard_path(resource, shard))
    except NodeMissingError:
        return {}
    terms: dict[str, dict[str, Any]] = _decode(data)
    return terms


async def show_tenant(store: Store, resource: str, tenant: str) -> Terms | None:
    """The terms that were set for it; None if none were."""
    return (await read_shard(store, resource, shard_of(tenant))).get(tenant)


async def list_tenants(
    store: Store, resource: str, *, shard: int = 0, most: int = 1000
) -> tuple[dict[str, Terms], int | None]:
    """Tenants from that shard on, whole shards, until there are `most`; and the shard to go on with."""
    index = await read_index(store, resource)
    found: dict[str, Terms] = {}
    for at in range(shard, SHARDS):
        if len(found) >= most:
            return found, at
        if index.sizes[at]:
            found.update(sorted((await read_shard(store, resource, at)).items()))
    return found, None


async def set_tenants(
    store: Store, resource: str, changes: Mapping[str, Terms | None], *, by: str, at_ns: int
) -> Head:
    """Set terms, or remove those of a tenant (None); all of them or none, unless they are too many for
    one transaction, which are then done one after the other. Raises UsageError or PolicyError before
    anything is changed."""
    if len(changes) > AT_ONCE_MAX:
        raise UsageError(f"{len(changes)} tenants in one call; set at most {AT_ONCE_MAX} at once")
    left = dict(changes)
    for _ in range(TRIES):
        await store.sync()
        found = await read_head(store)
        if found is None:
            raise UsageError("there is no policy in the store yet: `bursar apply FILE` first")
        document = await read_document(store, found[0].version)
        assert document is not None, "the head names one"
        await check_tenants(store, document, resource, left)
        operations, done = await _draft(store, resource, left)
        head = _count_change(found[0], resource)
        operations.append(Set(HEAD, layout.write(head), found[1].version))
        operations.append(audit.record(by, at_ns, "tenant", resource, _name(done), head.version))
        try:
            await store.transact(operations)
        except (VersionError, NodeExistsError, NodeMissingError):
            continue  # somebody else changed terms meanwhile: look again at what that means for these
        left = {tenant: terms for tenant, terms in left.items() if tenant not in done}
        await audit.trim(store)
        if not left:
            return head
    raise UsageError("others keep changing terms at the same time; try again")


def _count_change(head: Head, resource: str) -> Head:
    return Head(version=head.version, tenants={**head.tenants, resource: head.tenants.get(resource, 0) + 1})


def _name(done: Mapping[str, Terms | None]) -> str:
    """The first of them, for the audit."""
    first = [f"{tenant} {'removed' if terms is None else 'set'}" for tenant, terms in done.items()]
    more = len(first) - NAMED_IN_AUDIT
    return ", ".join(first[:NAMED_IN_AUDIT]) + (f" and {more} more" if more > 0 else "")


async def _draft(
    store: Store, resource: str, changes: Mapping[str, Terms | None]
) -> tuple[list[Operation], dict[str, Terms | None]]:
    """The operations for as many of the changes as one transaction holds, and which those are."""
    found = await layout.fetch(store, index_path(resource), Index)
    index = NO_TENANTS if found is None else found[0]
    operations: list[Operation] = [] if found is not None else [Create(index_path(resource), b"")]
    counts, sizes, size = list(index.changes), list(index.sizes), 0
    done: dict[str, Terms | None] = {}
    for shard, wanted in _sort(changes).items():
        merged = {**await read_shard(store, resource, shard), **wanted}
        after = {tenant: terms for tenant, terms in merged.items() if terms is not None}
        data = _encode(after)
        size += len(data)
        if done and (size > ROOM_BYTES or len(operations) > store.operations_max - BESIDES):
            break
        path = shard_path(resource, shard)
        operations.append(Set(path, data) if counts[shard] else Create(path, data))
        counts[shard] += 1
        sizes[shard] = len(after)
        done |= wanted
    written = layout.write(Index(changes=tuple(counts), sizes=tuple(sizes)))
    operations.append(Set(index_path(resource), written))
    return operations, done


def _sort(changes: Mapping[str, Terms | None]) -> dict[int, dict[str, Terms | None]]:
    """Into their shards."""
    shards: dict[int, dict[str, Terms | None]] = defaultdict(dict)
    for tenant, terms in changes.items():
        shards[shard_of(tenant)][tenant] = terms
    return shards


async def check_tenants(
    store: Store, document: Document, resource: str, changes: Mapping[str, Terms | None]
) -> None:
    """Refuse terms that are wrong, and tenants that the text of the policy lists."""
    policy = document.policy.resource(resource)
    for tenant in changes:
        if tenant in policy.tenants or is_template(tenant):
            raise UsageError(
                f'"{tenant}" of {resource} is in {document.source}: change it there, and `bursar apply` it'
            )
    index = await read_index(store, resource)
    new = 0
    for shard, wanted in _sort(changes).items():
        known = await read_shard(store, resource, shard) if index.sizes[shard] else {}
        for tenant, terms in wanted.items():
            new += terms is not None and tenant not in known
            if terms is None and tenant not in known:
                raise UsageError(
                    f'{resource} has no tenant "{tenant}" that was set; `bursar tenant list` lists them'
                )
    if len(policy.tenants) + sum(index.sizes) + new > policy.max_tenants:
        raise UsageError(f"{resource} takes at most {policy.max_tenants} tenants (max_tenants)")
    await _check_parents(store, policy, resource, index, changes)
    given = {tenant: terms for tenant, terms in changes.items() if terms is not None}
    above = {name: await show_tenant(store, resource, name) for name in list_above(given)}
    others = {name: terms for name, terms in above.items() if terms is not None}
    read_terms(document.table, resource, given, others)


async def _check_parents(
    store: Store, policy: ResourcePolicy, resource: str, index: Index, changes: Mapping[str, Terms | None]
) -> None:
    """Nobody is removed whom others count against."""
    removed = {tenant for tenant, terms in changes.items() if terms is None}
    if policy.kind != "quota" or not removed:
        return
    for shard in (shard for shard, size in enumerate(index.sizes) if size):
        for tenant in await read_shard(store, resource, shard):
            parent = tenant.rpartition("/")[0]
            if parent in removed and tenant not in removed:
                raise UsageError(f'"{tenant}" is below "{parent}": remove it first, or both at once')


def list_above(tenants: Iterable[str]) -> set[str]:
    """Whom any of them is below: "acme" for "acme/search"."""
    found: set[str] = set()
    for tenant in tenants:
        while tenant := tenant.rpartition("/")[0]:
            found.add(tenant)
    return found


def read_terms(
    table: Mapping[str, Any], resource: str, tenants: Mapping[str, Terms], others: Mapping[str, Terms]
) -> dict[str, Any]:
    """The values of terms as they are written, beside a policy's text; `others` are set too. Raises
    PolicyError."""
    if not tenants:
        return {}
    raw = dict(table["resource"][resource])
    known = {**others, **raw.get("tenant", {})}
    above = {name: known[name] for name in list_above(tenants) if name in known}
    raw["tenant"] = {**above, **{name: dict(terms) for name, terms in tenants.items()}}
    built = build({"resource": {resource: raw}}, f"tenants of {resource}").resource(resource)
    return {name: built.tenants[name] for name in tenants}


def add_tenants(policy: ResourcePolicy, tenants: Mapping[str, Any]) -> ResourcePolicy:
    """The policy with these tenants beside those that it lists."""
    if not tenants:
        return policy
    return msgspec.structs.replace(policy, tenants=Table({**tenants, **policy.tenants}))
