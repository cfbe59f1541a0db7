"""What stands in a store: the fleet's documents and tokens, claims, quotas, rates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from typing import Any

import msgspec

from bursar.claims import model
from bursar.claims.durations import Durations
from bursar.claims.records import describe, say_failure
from bursar.claims.requirements import Mode
from bursar.errors import BursarError, FormatError
from bursar.fleet import audit, changes, documents, identity, layout, tenants, tokens
from bursar.fleet.rights import Scope
from bursar.fleet.secret import read_secret
from bursar.quotas import layout as quotas
from bursar.quotas.layout import HomeRecord, TenantRecord
from bursar.rates.courier import read_state
from bursar.rates.messages import State
from bursar.runtime.clock import BootClock
from bursar.stores.memory import MemoryStore
from bursar.stores.tree import Tree
from bursar.world import SECOND_NS
from bursar_lab.fuzzing.pieces import mark, pick, run
from bursar_lab.fuzzing.target import Target

POLICY = """
[resource.cache]
kind = "rate"
servers = { a = "1k/s" }
tenant = { acme = { limit = "10/s" }, "*" = { limit = "1/s" } }
[resource.llm]
kind = "quota"
tenant = { acme = { limit = 100 } }
"""


# -- the fleet


@cache
def make_store() -> tuple[MemoryStore, dict[str, bytes]]:
    """With a fleet in it, as our own code writes one; and what each of its nodes holds."""
    return run(_make_store())


async def _make_store() -> tuple[MemoryStore, dict[str, bytes]]:
    store = await _open_store()
    clock = BootClock()
    await identity.identify(store, "3e0a")
    await read_secret(store, clock)
    await changes.apply(store, POLICY, by="me", at_ns=1)
    await documents.write_document(store, POLICY + "# again\n", by="me", at_ns=2, note="again")
    await tenants.set_tenants(store, "cache", {"x": {"limit": "5/s"}, "y/z": {"weight": 2}}, by="me", at_ns=3)
    await tokens.create_token(store, (Scope(verbs=("acquire",), resources=("cache",)),), by="me", at_ns=4)
    record = layout.NodeRecord(name="a", incarnation=1, address="h:1")
    await store.create(layout.node_path("a"), layout.write(record))
    await store.create(layout.member_path("a"), layout.write(layout.Member(name="a", at_ns=5)))
    return store, {path: data async for path, data in _walk(store, layout.ROOT) if data}


async def _open_store() -> MemoryStore:
    store = MemoryStore(Tree(), BootClock(), timeout_ns=3600 * SECOND_NS)
    store._beat.cancel()  # nothing of it outlives an input
    return store


async def _walk(store: MemoryStore, path: str) -> AsyncIterator[tuple[str, bytes]]:
    data, _ = await store.get(path)
    yield path, data
    for name in await store.children(path):
        async for each in _walk(store, f"{path}/{name}"):
            yield each


def read_fleet(data: bytes) -> None:
    """One node of the store holds something else: whoever reads it says so, or goes on."""
    store, held = make_store()
    path, data = pick(data, list(held))
    run(_read_fleet(store, path, data, held[path]))


async def _read_fleet(store: MemoryStore, path: str, data: bytes, before: bytes) -> None:
    """Without data there is nothing at all."""
    await store.set(path, data)
    try:
        if data:
            await _read_all(store)
        else:
            await _read_all(await _open_store())
    finally:
        await store.set(path, before)


async def _read_all(store: MemoryStore) -> None:
    for read in READERS:
        try:
            await read(store)
        except BursarError:
            continue


async def _read_terms(store: MemoryStore) -> None:
    document = await documents.read_document(store)
    if document is None:
        return
    for name in document.policy.resources:
        found = await tenants.list_tenants(store, name)
        terms = {tenant: each for tenant, each in found[0].items() if each is not None}
        tenants.add_tenants(
            document.policy.resource(name), tenants.read_terms(document.table, name, terms, {})
        )


async def _propose(store: MemoryStore) -> None:
    await changes.propose(store, POLICY.replace("10/s", "20/s"))


READERS: tuple[Callable[[MemoryStore], Awaitable[Any]], ...] = (
    documents.read_head,
    documents.read_document,
    documents.list_versions,
    tokens.list_tokens,
    tokens.is_required,
    layout.list_nodes,
    audit.list_entries,
    lambda store: read_secret(store, BootClock()),
    lambda store: identity.identify(store, "other"),
    _read_terms,
    _propose,
)


def make_fleets() -> Iterator[bytes]:
    _, held = make_store()
    for number, (path, data) in enumerate(held.items()):
        if path.startswith(layout.TENANTS):
            yield mark(number, layout.write(layout.Index(changes=(1,), sizes=(1,))))
            yield mark(number, layout.write(layout.Index(changes=(1,) * 256, sizes=(1,) * 256)))
        yield from (mark(number, data), mark(number, data[:-2]), mark(number, b""), mark(number, b"\xff"))
        yield from (mark(number, b'{"' + b"[" * 2000), mark(number, b"[]"), mark(number, b"\x81\xa1x\x80"))


# -- claims


def read_claim(data: bytes) -> None:
    forms: list[Callable[[str, bytes], Any]] = [
        model.decode_task,
        model.decode_holding,
        model.decode_mark,
        model.decode_era,
    ]
    read, data = pick(data, forms)
    record = read("/claims/x", data)
    again = read("/claims/x", model.encode(record))
    assert model.encode(again) == model.encode(record), "written and read, and not the same"
    if isinstance(record, model.Task):
        msgspec.json.encode(describe(record))
        say_failure(record)


def make_claims() -> Iterator[bytes]:
    from bursar.claims.courier import new_task

    task = new_task(
        id="t1", tenant="acme", needs=(("vm", Mode.EXCLUSIVE),), payload=b"x", priority=1, submitted=5
    )
    records: tuple[Any, ...] = (task, model.Holding(3, "t1"), model.Mark("a", 1), model.Era(4, "s"))
    for number, record in enumerate(records):
        written = model.encode(record)
        yield from (
            mark(number, written),
            mark(number, written[:-1]),
            mark(number, b""),
            mark(number, b"\xff"),
        )
    yield mark(0, model.encode(msgspec.structs.replace(task, phases=(1, 2))))
    yield mark(1, b"\x91" * 2000)


def read_durations(data: bytes) -> None:
    """What was learned by others is taken in or counts for nothing; whatever it is, it is forecast."""
    known = Durations()
    known.merge(data)
    for key in list(known._learned):
        known.expect(*key.partition("/")[::2])
        known.note(*key.partition("/")[::2], 1.0)
    again = Durations()
    again.merge(known.encode())
    assert again.encode() == known.encode(), "written and read, and not the same"


def make_durations() -> Iterator[bytes]:
    known = Durations()
    known.note("f", "acme", 0.5)
    yield known.encode()
    yield from (b"", b"\xff", msgspec.msgpack.encode({"f": (1, 1e300, -1.0), "g": (-1, float("nan"), 1.0)}))
    yield msgspec.msgpack.encode({"f/acme": (-1, 0.0, 0.5)})
    yield msgspec.msgpack.encode({"f": (2**63, 1.0, 1.0), "f/acme": (-(2**63), float("inf"), 0.0)})


# -- quotas, rates

READ: list[Callable[[bytes], Any]] = [quotas.read_home, quotas.read_tenant, read_state]


def read_record(data: bytes) -> None:
    read, data = pick(data, [*READ, _read_live])
    record = read(data)
    if read is quotas.read_tenant:
        assert quotas.read_tenant(quotas.write_tenant(record)) == record, "written and read, and not the same"


def _read_live(data: bytes) -> Any:
    return quotas.read_live(data.decode("utf-8", "replace"))


def make_records() -> Iterator[bytes]:
    yield mark(0, quotas.write_home(_fill(HomeRecord)))
    yield mark(1, quotas.write_tenant(_fill(TenantRecord)))
    yield mark(2, msgspec.msgpack.encode(State(3, "a", 1, ())))
    for number in range(3):
        yield from (
            mark(number, b""),
            mark(number, b"[" * 3000),
            mark(number, b'"\xff'),
            mark(number, b"\x91" * 3000),
        )
    yield from (
        mark(3, b"a%2Fb:0000000007"),
        mark(3, b"a"),
        mark(3, b"a:00000x0007"),
        mark(3, "a:²²²²²²²²²²".encode()),
    )


def _fill(form: Any) -> Any:
    from bursar_lab.fuzzing.targets.wire import fill

    return msgspec.convert(fill(form), form)


FLEET = "bursar.fleet"
TARGETS = (
    Target(
        "records-fleet",
        (
            f"{FLEET}.layout:read,fetch,list_nodes",
            f"{FLEET}.documents:read_head,read_document,_read_version,_read_chunk,list_versions,Document",
            f"{FLEET}.tokens:list_tokens,read_token,is_required,_read_folder",
            f"{FLEET}.tenants:read_index,read_shard,list_tenants,read_terms,add_tenants",
            f"{FLEET}.audit:list_entries,_read",
        ),
        read_fleet,
        make_fleets,
        (),
        (
            b'"version":',
            b'"chunks":',
            b'"digest":',
            b'"tenants":',
            b'"scopes":',
            b'"changes":',
            b'"sizes":',
            b"null",
        ),
    ),
    Target(
        "records-claims",
        (
            "bursar.claims.model:decode_task,decode_holding,decode_mark,decode_era",
            "bursar.claims.records:describe",
        ),
        read_claim,
        make_claims,
        (FormatError,),
    ),
    Target(
        "records-durations",
        ("bursar.claims.durations:Durations.merge,Durations.expect,Durations.note,Learned",),
        read_durations,
        make_durations,
        (),
    ),
    Target(
        "records-quotas",
        ("bursar.quotas.layout:read_home,read_tenant,read_live", "bursar.decoding:make_reader.read"),
        read_record,
        make_records,
        (FormatError,),
    ),
)
