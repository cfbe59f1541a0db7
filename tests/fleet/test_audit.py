"""The audit keeps the newest lines, and never too many."""

from __future__ import annotations

import pytest

from bursar.errors import StoreUnknownError
from bursar.fleet import audit, layout
from bursar.fleet.documents import write_document
from bursar.fleet.layout import AUDIT
from bursar.fleet.tenants import set_tenants
from bursar.world import CHILDREN_MAX, Store

POLICY = '[resource.cache]\nkind = "rate"\nservers = { a = "1k/s" }\n'


async def add_lines(store: Store, count: int) -> None:
    await layout.prepare(store)
    for at in range(0, count, 500):
        await store.transact(
            [audit.record("me", n, "policy", f"version {n}") for n in range(at, min(count, at + 500))]
        )


async def test_the_oldest_lines_go_when_there_are_too_many(store: Store) -> None:
    assert audit.KEPT + audit.SLACK < CHILDREN_MAX
    await add_lines(store, audit.KEPT + audit.SLACK)
    await audit.trim(store)
    assert len(await store.children(AUDIT)) == audit.KEPT + audit.SLACK, "not every change tidies up"
    await write_document(store, POLICY, by="me", at_ns=10**6)
    found = await audit.list_entries(store)
    assert len(found) == audit.KEPT
    assert (found[0].at_ns, found[-1].at_ns) == (audit.SLACK + 1, 10**6)
    assert [entry.number for entry in found] == sorted(entry.number for entry in found)
    assert [entry.at_ns for entry in await audit.list_entries(store, 2)] == [5_099, 10**6]


@pytest.mark.parametrize("change", ["policy", "tenant"])
async def test_a_change_is_made_though_tidying_up_fails(
    store: Store, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_document(store, POLICY, by="me", at_ns=1)
    await add_lines(store, audit.KEPT + audit.SLACK)

    async def fail(*_: object) -> None:
        raise StoreUnknownError("no reply")

    monkeypatch.setattr(layout, "remove", fail)
    if change == "policy":
        await write_document(store, POLICY + "# again\n", by="me", at_ns=10**6)
    else:
        await set_tenants(store, "cache", {"acme": {"limit": "10/s"}}, by="me", at_ns=10**6)
    newest = (await audit.list_entries(store))[-1]
    assert (newest.what, newest.at_ns) == (change, 10**6)
