"""Grants that are held over HTTP: their time to live, what ends them, and who has left."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from tests.resources.over_http import HttpCaller

from bursar.api import acquiring, desk, holdings
from bursar.api.errors import GoneError
from bursar.errors import Refused, Unknown, UsageError
from bursar.resource.grants import Grant
from bursar.runtime.daemon import Daemon

CLAIM = {"tenant": "ops", "names": ["vm-7:E"]}


async def claim(caller: HttpCaller, **terms: object) -> object:
    return await caller.ask("POST", "/resources/dc/claims", {**CLAIM, **terms})


async def until_waiting(daemon: Daemon, resource: str, count: int) -> None:
    async with asyncio.timeout(10):
        while daemon.host.resources[resource].asking.waiting != count:
            await asyncio.sleep(0.01)


async def test_a_holder_that_says_nothing_loses_its_claim_and_one_that_renews_keeps_it(
    caller: HttpCaller,
) -> None:
    first = await claim(caller, ttl=1)
    with pytest.raises(Refused):
        await claim(caller)
    for _ in range(4):
        await asyncio.sleep(0.4)
        renewed = await caller.ask("POST", f"/grants/{first.id}/renew", {"ttl": 1})
        assert 0 < renewed.expires_in <= 1
    second = await claim(caller, wait=10)
    assert second.fence["vm-7"] > first.fence["vm-7"]
    with pytest.raises(UsageError, match="expired"):
        await caller.ask("POST", f"/grants/{first.id}/renew", {"ttl": 1})


async def test_who_leaves_while_it_waits_leaves_nothing_held(caller: HttpCaller, daemon: Daemon) -> None:
    held = await claim(caller)
    assert daemon.http_at is not None
    _, writer = await asyncio.open_connection(daemon.http_at.host, daemon.http_at.port)
    body = json.dumps({**CLAIM, "wait": 60}).encode()
    head = f"POST /v1/resources/dc/claims HTTP/1.1\r\nHost: {daemon.http_at}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await until_waiting(daemon, "dc", 1)
    writer.close()
    await until_waiting(daemon, "dc", 0)
    await caller.release(held)
    again = await claim(caller, wait=10)
    await caller.release(again)


async def test_who_left_at_the_moment_of_the_grant_holds_nothing(daemon: Daemon) -> None:
    """The grant is there and nobody to take it: it goes back."""
    door = daemon.host.resources["llm"]
    counter = desk.Desk(daemon.host.world, daemon.host.resources)
    taken = asyncio.Event()

    async def take() -> Grant:
        grant = await door.acquire("globex", 10)
        taken.set()
        return grant

    async def leave() -> None:
        await taken.wait()

    with pytest.raises(GoneError):
        await counter.wait(take(), leave, acquiring._undo)
    async with door.acquire("globex", 10, wait=1):
        pass


async def test_ending_again_is_ending_once(caller: HttpCaller) -> None:
    grant = await caller.acquire("llm", 100)
    await caller.settle(grant, 40)
    await caller.settle(grant, 40)
    with pytest.raises(UsageError, match="before, for 40"):
        await caller.settle(grant, 41)
    await caller.release(grant)
    with pytest.raises(UsageError, match="ended"):
        await caller.ask("GET", f"/grants/{grant.id}")
    spent = (await caller.statistics("llm")).part["tenants"]["acme"]["spent"]
    assert spent == 40


async def test_a_repeat_of_a_key_has_the_id_of_the_first(caller: HttpCaller, daemon: Daemon) -> None:
    first, again = await claim(caller, key="k", ttl=1), await claim(caller, key="k", ttl=30)
    assert (again.id, again.replayed, first.replayed) == (first.id, True, False)
    await caller.release(again)
    other = await claim(caller, wait=5)
    await caller.release(other)
    bought, repeated = await caller.acquire("llm", 5, key="q"), await caller.acquire("llm", 5, key="q")
    assert bought.id == repeated.id
    await caller.settle(repeated, 2)
    assert (await caller.acquire("llm", 5, key="q")).used == 2


async def test_a_quotas_grant_is_settled_by_its_own_id_too(caller: HttpCaller) -> None:
    grant = await caller.acquire("llm", 100)
    assert grant.settle_id
    await caller.ask("POST", "/resources/llm/settlements", {"id": grant.settle_id, "used": 1})
    assert (await caller.statistics("llm")).part["tenants"]["acme"]["spent"] == 1
    with pytest.raises(UsageError, match="whose grants have no ids"):
        await caller.ask("POST", "/resources/cache/settlements", {"id": "a/1", "used": 1})


async def test_what_is_settled_for_more_than_was_acquired_is_over_and_what_is_beyond_unpaid(
    caller: HttpCaller,
) -> None:
    grant = await caller.acquire("llm", 10)
    for _ in range(2):
        with pytest.raises(UsageError, match="above the 10"):
            await caller.settle(grant, 11)
    with pytest.raises(UsageError, match="ended before, for 11"):
        await caller.settle(grant, 10)
    row = (await caller.statistics("llm")).part["tenants"]["acme"]
    assert (row["spent"], row["held"], row["unpaid"]) == (10, 0, 1)


async def test_one_caller_holds_so_many_and_quotas_make_way(
    caller: HttpCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holdings, "HELD_BY_ONE_MAX", 3)
    grants = [await caller.acquire("llm") for _ in range(4)]
    with pytest.raises(UsageError, match="no such grant"):
        await caller.ask("GET", f"/grants/{grants[0].id}")
    await caller.ask("POST", "/resources/llm/settlements", {"id": grants[0].settle_id, "used": 0})
    for number in range(3):
        await caller.ask("POST", "/resources/dc/claims", {"tenant": "ops", "names": [f"n{number}:E"]})
    with pytest.raises(Unknown, match="release some"):
        await claim(caller)


async def test_so_many_wait_at_once_and_others_are_answered(
    caller: HttpCaller, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "WAITING_MAX", 2)
    held = await claim(caller)
    waiting = [asyncio.create_task(claim(caller, wait=30)) for _ in range(2)]
    await until_waiting(daemon, "dc", 2)
    with pytest.raises(Unknown, match="wait here already"):
        await claim(caller, wait=30)
    assert (await caller.b.get("/ready")).status_code == 200
    for _ in range(2):
        await caller.release(held)
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        held = next(task for task in waiting if task.done()).result()
        waiting = [task for task in waiting if not task.done()]


async def test_a_daemon_that_stops_tells_those_who_wait(
    client: httpx.AsyncClient, caller: HttpCaller, daemon: Daemon
) -> None:
    await claim(caller)
    waiting = asyncio.create_task(claim(caller, wait=30))
    await until_waiting(daemon, "dc", 1)
    await daemon._reports.close()
    with pytest.raises(Unknown, match="being stopped"):
        await waiting
