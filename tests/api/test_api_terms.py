"""Tenants, the policy and tasks over HTTP: what one can be told and told to change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.conftest import write_policy
from tests.resources.over_http import JSON, HttpCaller

from bursar.errors import Refused, UsageError
from bursar.runtime.daemon import Daemon

TENANTS = "/resources/llm/tenants"


async def until_known(caller: HttpCaller, tenant: str) -> Any:
    async with asyncio.timeout(10):
        while True:
            try:
                return await caller.acquire("llm", 1, tenant=tenant)
            except Refused as refused:
                assert refused.reason == "tenant"
                await asyncio.sleep(0.02)


async def test_a_tenant_is_set_used_shown_and_removed(caller: HttpCaller, daemon: Daemon) -> None:
    with pytest.raises(Refused):
        await caller.acquire("llm", tenant="initech")
    await caller.ask("PUT", f"{TENANTS}/initech", {"limit": 3})
    await caller.ask("PUT", f"{TENANTS}/initech/search", {"limit": 2})
    grant = await until_known(caller, "initech/search")
    assert grant.limit == 2
    shown = await caller.ask("GET", f"{TENANTS}/initech/search")
    assert (shown.tenant, shown.terms, shown.source) == ("initech/search", {"limit": 2}, "tenant")
    assert (await caller.ask("GET", f"{TENANTS}/acme")).source == "policy"
    await caller.ask("DELETE", f"{TENANTS}/initech/search")
    with pytest.raises(UsageError, match="no tenant"):
        await caller.ask("DELETE", f"{TENANTS}/initech/search")
    with pytest.raises(UsageError, match="policy version 1"):
        await caller.ask("PUT", f"{TENANTS}/acme", {"limit": 3})
    with pytest.raises(UsageError, match="limit"):
        await caller.ask("PUT", f"{TENANTS}/hooli", {"limit": -3})


async def test_many_are_set_at_once_and_listed_in_pages(caller: HttpCaller) -> None:
    names = [f"t{number}" for number in range(3000)]
    done = await caller.ask("POST", TENANTS, {"tenants": {name: {"limit": 5} for name in names}})
    assert done.changed == 3000
    found: dict[str, Any] = {}
    page, pages = 0, 0
    while page is not None:
        listed = await caller.ask("GET", TENANTS, page=page, most=1000)
        assert listed.tenants and not set(found) & set(listed.tenants)
        found |= listed.tenants
        page, pages = listed.next, pages + 1
    assert sorted(found) == sorted(names) and pages >= 3
    await caller.ask("POST", TENANTS, {"tenants": dict.fromkeys(names[:10])})
    await until_known(caller, "t11")


async def test_the_policy_is_proposed_applied_and_rolled_back(
    caller: HttpCaller, client: httpx.AsyncClient, daemon: Daemon, tmp_path: Path
) -> None:
    first = await client.get("/v1/policy")
    assert first.headers["etag"] == '"1"' and first.json()["origin"] == "file"
    text = write_policy(tmp_path).replace("limit = 10 }", "limit = 20 }")
    proposed = await caller.ask("POST", "/policy/proposals", {"text": text})
    assert proposed.possible and proposed.expected == 1
    (change,) = proposed.changes
    assert change["key"] == "resource.llm.tenant.globex.limit" and change["after"] == "20"
    stale = await client.put("/v1/policy", json={"text": text}, headers={**JSON, "If-Match": '"7"'})
    assert stale.status_code == 412
    bad = await client.put("/v1/policy", json={"text": "[resource.x]\nkind = 3"}, headers=JSON)
    assert bad.status_code == 422 and bad.json()["problems"][0]["path"] == "resource.x.kind"
    kind = text.replace('kind = "claim"\ndead_holder = "fail"', 'kind = "quota"\ntenant.a.limit = 1')
    impossible = await client.put("/v1/policy", json={"text": kind}, headers=JSON)
    assert impossible.status_code == 409 and "keeps its kind" in impossible.json()["detail"]
    done = await client.put(
        "/v1/policy", json={"text": text, "note": "more"}, headers={**JSON, "If-Match": '"1"'}
    )
    assert done.status_code == 200 and done.json()["by"] == "local" and done.headers["etag"] == '"2"'
    async with asyncio.timeout(10):
        while (await caller.ask("GET", "/nodes")).nodes[0]["version"] != 2:
            await asyncio.sleep(0.02)
    back = await caller.ask("POST", "/policy/rollback", {"number": 1})
    assert back.number == 3
    listed = (await caller.ask("GET", "/policy/versions")).versions
    assert [version["number"] for version in listed] == [3, 2, 1]
    assert (await caller.ask("GET", "/policy/versions/2")).text == text
    with pytest.raises(UsageError, match="no version 9"):
        await caller.ask("GET", "/policy/versions/9")


async def test_tasks_are_submitted_waited_for_and_cancelled(caller: HttpCaller, daemon: Daemon) -> None:
    held = await caller.ask("POST", "/resources/dc/claims", {"tenant": "ops", "names": ["vm-7:E"]})
    made = await caller.ask(
        "POST", "/resources/dc/tasks", {"tenant": "ops", "names": ["vm-7:E"], "payload": "résize", "key": "k"}
    )
    again = await caller.ask(
        "POST", "/resources/dc/tasks", {"tenant": "ops", "names": ["vm-7:E"], "payload": "résize", "key": "k"}
    )
    assert made.id == again.id
    at = f"/resources/dc/tasks/{made.id}"
    assert (await caller.ask("GET", at)).state == "pending"
    listed = (await caller.ask("GET", "/resources/dc/tasks")).tasks
    assert made.id in [task["id"] for task in listed]
    assert any("vm-7" in line for line in (await caller.ask("GET", f"{at}/why")).sentences)
    waiting = asyncio.create_task(caller.ask("GET", at, wait=30))
    assert (await caller.ask("DELETE", at)).outcome == "cancelled"
    assert (await waiting).outcome == "cancelled"
    with pytest.raises(UsageError, match="no task"):
        await caller.ask("GET", "/resources/dc/tasks/nothing")
    over = await caller.ask("POST", "/resources/dc/task-waits", {"ids": [made.id, "t0"], "wait": 5})
    assert over.over == [{"id": made.id, "outcome": "cancelled"}, {"id": "t0", "outcome": None}]
    assert not over.more
    ended = (await caller.ask("GET", "/resources/dc/task-history", outcome="cancelled")).tasks
    assert [task["id"] for task in ended] == [made.id]
    assert (await caller.ask("GET", "/resources/dc/dead-tasks")).tasks == []
    for method in ("POST", "DELETE"):
        with pytest.raises(UsageError, match="not among the tasks that were given up"):
            await caller.ask(method, f"/resources/dc/dead-tasks/{made.id}")
    await caller.release(held)
    with pytest.raises(UsageError, match="kind quota"):
        await caller.ask("POST", "/resources/llm/tasks", {"tenant": "acme", "names": ["n:E"]})


async def test_statistics_are_cut_to_so_many_rows(caller: HttpCaller) -> None:
    whole = await caller.ask("GET", "/resources/llm/statistics")
    assert set(whole.tenants) == {"acme", "globex"}
    assert len((await caller.ask("GET", "/resources/llm/statistics", most=1)).tenants) == 1
    one = await caller.ask("GET", "/resources/llm/statistics", tenant="globex")
    assert set(one.tenants) == {"globex"} == set(one.part["tenants"])
    assert one.part["whole"] == {}
