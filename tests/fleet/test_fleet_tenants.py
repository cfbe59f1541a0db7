"""Tenants set one by one: beside the text, in shards, all or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from texts import BOTH, CACHE, LLM

from bursar.errors import PolicyError, UsageError
from bursar.fleet import audit, layout, tenants
from bursar.fleet.documents import read_head, write_document
from bursar.fleet.following import Terms
from bursar.policy import Policy
from bursar.units import read_rate
from bursar.world import Operation, Store


async def read_terms(store: Store, terms: Terms | None = None) -> Policy:
    head = await read_head(store)
    assert head is not None
    return await (terms or Terms(store)).read(head[0])


async def put(store: Store, resource: str, **changes: dict[str, object] | None) -> None:
    await tenants.set_tenants(store, resource, changes, by="ann", at_ns=0)


async def test_a_tenant_that_was_set_stands_beside_those_of_the_text(store: Store) -> None:
    await write_document(store, BOTH, by="ann", at_ns=0)
    await put(store, "cache", joe={"limit": "5/s", "weight": 3})
    found = (await read_terms(store)).resources["cache"].tenants
    assert sorted(found) == ["acme", "joe"]
    assert (found["joe"].limit, found["joe"].weight) == (read_rate("5/s"), 3)
    assert await tenants.show_tenant(store, "cache", "joe") == {"limit": "5/s", "weight": 3}


async def test_a_tenant_that_was_removed_is_gone(store: Store) -> None:
    await write_document(store, BOTH, by="ann", at_ns=0)
    terms = Terms(store)
    await put(store, "cache", joe={"limit": "5/s"}, ann={"limit": "6/s"})
    assert set((await read_terms(store, terms)).resources["cache"].tenants) == {"acme", "joe", "ann"}
    await put(store, "cache", joe=None)
    assert set((await read_terms(store, terms)).resources["cache"].tenants) == {"acme", "ann"}
    with pytest.raises(UsageError, match='no tenant "joe" that was set'):
        await put(store, "cache", joe=None)


async def test_every_change_of_tenants_is_a_change_of_terms(store: Store) -> None:
    await write_document(store, BOTH, by="ann", at_ns=0)
    before = await store.exists(layout.HEAD)
    await put(store, "cache", joe={"limit": "5/s"})
    after = await store.exists(layout.HEAD)
    assert before is not None and after is not None and after.version == before.version + 1


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"acme": {"limit": "5/s"}}, UsageError, "is in policy version 1: change it there"),
        ({"*": {"limit": "5/s"}}, UsageError, "change it there"),
        ({"joe": {"limit": "fast"}}, PolicyError, "resource.cache.tenant.joe.limit"),
        ({"joe": {"colour": 1}}, PolicyError, "unknown key"),
        ({"joe": {"reservation": "9/s", "limit": "5/s"}}, PolicyError, "below the reservation"),
        ({"fine": {"limit": "5/s"}, " joe": {"limit": "5/s"}}, PolicyError, "begins or ends with a space"),
    ],
)
async def test_terms_that_are_wrong_change_nothing(
    store: Store, changes: dict[str, dict[str, object]], error: type[Exception], why: str
) -> None:
    await write_document(store, BOTH, by="ann", at_ns=0)
    with pytest.raises(error, match=why):
        await tenants.set_tenants(store, "cache", changes, by="ann", at_ns=0)
    assert set((await read_terms(store)).resources["cache"].tenants) == {"acme"}
    assert len(await audit.list_entries(store)) == 1


async def test_a_nested_tenant_of_a_quota_needs_its_parent_from_either_side(store: Store) -> None:
    await write_document(store, LLM, by="ann", at_ns=0)
    await tenants.set_tenants(store, "llm", {"acme/chat": {"limit": 300}}, by="ann", at_ns=0)
    await tenants.set_tenants(store, "llm", {"zeta": {"limit": 300}}, by="ann", at_ns=0)
    await tenants.set_tenants(store, "llm", {"zeta/chat": {"limit": 200}}, by="ann", at_ns=0)
    found = (await read_terms(store)).resources["llm"].tenants
    assert found["acme/chat"].parent == "acme" and found["zeta/chat"].parent == "zeta"
    with pytest.raises(PolicyError, match='nested below "nobody"'):
        await tenants.set_tenants(store, "llm", {"nobody/chat": {"limit": 1}}, by="ann", at_ns=0)
    with pytest.raises(PolicyError, match='above the one of "zeta"'):
        await tenants.set_tenants(store, "llm", {"zeta/more": {"limit": 301}}, by="ann", at_ns=0)
    with pytest.raises(UsageError, match='"zeta/chat" is below "zeta"'):
        await tenants.set_tenants(store, "llm", {"zeta": None}, by="ann", at_ns=0)
    await tenants.set_tenants(store, "llm", {"zeta": None, "zeta/chat": None}, by="ann", at_ns=0)


async def test_tenants_outlive_a_new_version_of_the_text(store: Store) -> None:
    await write_document(store, BOTH, by="ann", at_ns=0)
    terms = Terms(store)
    await put(store, "cache", joe={"limit": "5/s"})
    await read_terms(store, terms)
    await write_document(store, CACHE, by="ann", at_ns=0)
    assert set((await read_terms(store, terms)).resources["cache"].tenants) == {"acme", "joe"}


async def test_no_more_tenants_than_the_resource_takes(store: Store) -> None:
    few = BOTH.replace('kind = "rate"', 'kind = "rate"\nmax_tenants = 3')
    await write_document(store, few, by="ann", at_ns=0)
    await put(store, "cache", joe={"limit": "5/s"}, ann={"limit": "5/s"})
    with pytest.raises(UsageError, match="at most 3 tenants"):
        await put(store, "cache", bob={"limit": "5/s"})
    await put(store, "cache", joe={"limit": "6/s"})


async def test_thousands_are_set_in_a_few_transactions_and_read_in_pages(store: Store) -> None:
    await write_document(store, BOTH, by="ann", at_ns=0)
    many = {f"user-{number}": {"limit": "5/s"} for number in range(5000)}
    before = (await store.sync()) or 0
    await tenants.set_tenants(store, "cache", many, by="ann", at_ns=0)
    assert (await store.sync()) - before <= 3
    listed: dict[str, object] = {}
    shard: int | None = 0
    while shard is not None:
        page, shard = await tenants.list_tenants(store, "cache", shard=shard, most=1000)
        assert len(page) < 1100
        listed.update(page)
    assert listed == many


async def test_only_what_changed_is_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await write_document(store, BOTH, by="ann", at_ns=0)
    await tenants.set_tenants(
        store, "cache", {f"user-{number}": {"limit": "5/s"} for number in range(2000)}, by="ann", at_ns=0
    )
    terms = Terms(store)
    await read_terms(store, terms)
    read: list[int] = []
    original = tenants.read_shard

    async def count(store: Store, resource: str, shard: int) -> dict[str, dict[str, object]]:
        read.append(shard)
        return await original(store, resource, shard)

    await put(store, "cache", joe={"limit": "5/s"})
    monkeypatch.setattr(tenants, "read_shard", count)
    found = await read_terms(store, terms)
    assert read == [tenants.shard_of("joe")]
    assert len(found.resources["cache"].tenants) == 2002


async def test_tenants_go_in_parts_where_a_transaction_takes_few_operations(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_document(store, BOTH, by="ann", at_ns=0)
    monkeypatch.setattr(type(store), "operations_max", 20)
    transact, sizes = store.transact, []

    async def count(operations: Sequence[Operation]) -> object:
        sizes.append(len(operations))
        return await transact(operations)

    monkeypatch.setattr(store, "transact", count)
    await put(store, "cache", **{f"t{number}": {"limit": "5/s"} for number in range(100)})
    assert max(sizes) <= 20 and len(sizes) > 5
    assert len((await read_terms(store)).resources["cache"].tenants) == 101
