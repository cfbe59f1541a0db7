"""/live, /ready and /metrics of a daemon: from before its resources are open until it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bursar.errors import UsageError
from bursar.policy.values import DaemonPolicy, Policy
from bursar.resource.door import Resource
from bursar.runtime import slices
from bursar.runtime.daemon import Daemon
from bursar.runtime.reports import Reports
from bursar.runtime.scrapes import ResourcesMetrics, Scrapes
from bursar.runtime.world import LiveWorld, open_world

from . import toy
from .asking import get, get_json
from .conftest import MakePolicy, Serve
from .watched import open_watched

RUNS = {"policy_version": 0, "policy_problem": ""}
"""A policy that was built by hand has no version."""


@pytest.fixture
async def world() -> AsyncIterator[LiveWorld]:
    world = await open_world("node")
    yield world
    await world.close()


def scrape(resources: Mapping[str, Resource], tenants_most: int = 10) -> Scrapes:
    metrics = ResourcesMetrics(tenants_most)
    return Scrapes(lambda text: metrics.export(text, resources))


async def test_it_is_ready_while_every_resource_would_decide(
    make_policy: MakePolicy, serve_policy: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = await serve_policy(make_policy())
    at = daemon.http_at
    assert at is not None
    assert await get_json(at, "/live") == (200, {"live": True, "name": "bursar"})
    assert await get_json(at, "/ready") == (200, {"ready": True, "not_ready": [], **RUNS})
    monkeypatch.setattr(daemon.host.resources["llm"].decider, "is_ready", lambda: False)
    assert await get_json(at, "/ready") == (503, {"ready": False, "not_ready": ["llm"], **RUNS})
    assert 'bursar_ready{resource="llm",kind="quota"} 0' in (await get(at, "/metrics"))[1]
    monkeypatch.undo()
    assert (await get(at, "/ready"))[0] == 200
    daemon.stop()
    assert (await get(at, "/ready"))[0] == 503
    assert (await get(at, "/live"))[0] == 200


async def test_it_is_not_ready_before_its_policy_came_from_the_store() -> None:
    reports = Reports(Policy(resources={}, daemon=DaemonPolicy(http="127.0.0.1:0")))
    at = await reports.listen()
    assert at is not None
    assert await get_json(at, "/ready") == (503, {"ready": False, "not_ready": ["policy"]})
    await reports.close()


async def test_it_lives_before_its_resources_are_open(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, go_on = asyncio.Event(), asyncio.Event()

    async def start(self: Resource) -> None:
        starting.set()
        await go_on.wait()

    heard: list[Any] = []
    listen = Reports.listen

    async def listen_and_say(self: Reports) -> Any:
        heard.append(await listen(self))
        return heard[-1]

    monkeypatch.setattr(toy.ToyDecider, "start", start)
    monkeypatch.setattr(Reports, "listen", listen_and_say)
    opening = asyncio.ensure_future(Daemon.open(make_policy()))
    await starting.wait()
    (at,) = heard
    assert (await get_json(at, "/live"))[0] == 200
    assert await get_json(at, "/ready") == (503, {"ready": False, "not_ready": ["llm"]})
    status, text = await get(at, "/metrics")
    assert status == 200 and "\nbursar_up 0\n" in text
    go_on.set()
    daemon = await opening
    assert (await get(at, "/ready"))[0] == 200
    assert "\nbursar_up 1\n" in (await get(at, "/metrics"))[1]
    await daemon.close()
    with pytest.raises(OSError):
        await get(at, "/live")


async def test_a_daemon_that_cannot_start_leaves_nothing_listening(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    listen = Reports.listen

    async def listen_and_say(self: Reports) -> Any:
        heard.append(await listen(self))
        return heard[-1]

    async def fail(self: Resource) -> None:
        raise UsageError("it cannot")

    monkeypatch.setattr(Reports, "listen", listen_and_say)
    monkeypatch.setattr(toy.ToyDecider, "start", fail)
    with pytest.raises(UsageError, match="it cannot"):
        await Daemon.open(make_policy())
    with pytest.raises(OSError):
        await get(heard[0], "/live")


async def test_metrics_tell_of_the_node_its_clients_and_its_resources(
    make_policy: MakePolicy, serve_policy: Serve
) -> None:
    daemon = await serve_policy(make_policy())
    resource = daemon.host.resources["llm"]
    async with resource.acquire("acme", 30):
        pass
    assert daemon.http_at is not None
    status, text = await get(daemon.http_at, "/metrics")
    assert status == 200
    both = 'resource="llm",kind="quota"'
    for line in (
        f'bursar_tenant_granted_total{{{both},tenant="acme"}} 30',
        f'bursar_quota_tenant_spent_total{{{both},tenant="acme"}} 30',
        f'bursar_quota_info{{{both},unit="toys"}} 1',
        "bursar_clients_grants 0",
        "bursar_alerts_dropped_total 0",
    ):
        assert line in text.splitlines()
    assert "bursar_build_info{version=" in text


async def test_metrics_want_the_token_and_health_does_not(
    make_policy: MakePolicy, serve_policy: Serve, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text("sixteen characters\n")
    daemon = await serve_policy(make_policy(metrics_token_file=str(secret)))
    assert daemon.http_at is not None
    assert (await get(daemon.http_at, "/metrics"))[0] == 401
    assert (await get(daemon.http_at, "/metrics", "Authorization: Bearer sixteen characters"))[0] == 200
    assert (await get(daemon.http_at, "/ready"))[0] == 200
    secret.write_text("short\n")
    with pytest.raises(UsageError, match="16 characters"):
        Reports(Policy(resources={}, daemon=DaemonPolicy(metrics_token_file=str(secret))))


async def test_who_asks_while_an_answer_is_made_is_given_the_same(world: LiveWorld) -> None:
    made = scrape({"cache": open_watched(world)})
    answers = await asyncio.gather(*(made.answer() for _ in range(5)))
    assert all(answer is answers[0] for answer in answers)
    assert await made.answer() is not answers[0]


async def test_a_resource_that_comes_again_begins_anew(world: LiveWorld) -> None:
    resources = {"cache": open_watched(world, "a", "b")}
    made = scrape(resources, tenants_most=1)
    await (await resources["cache"].acquire("a", 5)).release()
    await made.answer()
    resources.clear()
    await made.answer()
    resources["cache"] = open_watched(world, "a", "b")
    await (await resources["cache"].acquire("b", 5)).release()
    text = b"".join((await made.answer()).body).decode()
    assert 'tenant="b"} 5' in text and 'tenant="a"' not in text


async def test_grants_go_on_while_ten_thousand_tenants_are_scraped(
    world: LiveWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With slices of no time at all everybody has a turn after each step, and no step is a long one."""
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    names = [f"tenant-{number}" for number in range(10_000)]
    resource = open_watched(world, *names)
    scraping = asyncio.ensure_future(scrape({"cache": resource}, tenants_most=10_000).answer())
    granted = 0
    while not scraping.done():
        async with resource.acquire(names[granted % len(names)]):
            granted += 1
        await asyncio.sleep(0)
    assert sum(map(len, scraping.result().body)) > 5_000_000
    assert granted > 300
