"""What a daemon watches for: the condition or the event is seen, and told for whom it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bursar.resource.alerts import Alert
from bursar.resource.door import Resource
from bursar.runtime.alerts import Alerts
from bursar.runtime.watch import Watch
from bursar.runtime.world import LiveWorld, open_world

from .asking import get
from .conftest import MakePolicy, Serve
from .watched import Figures, ServerFigures, TenantFigures, open_watched, rows, watched


@pytest.fixture
async def world() -> AsyncIterator[LiveWorld]:
    world = await open_world("node")
    yield world
    await world.close()


class Everything(Alerts):
    """Tells everything, however often."""

    def add(self, alert: Alert, now_s: float) -> None:
        self._tell(alert, None, now_s)


class Watched:
    """A resource, its watch, and what was told of it."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.told: list[Alert] = []
        self.watch = Watch({"cache": resource}, Everything({}, self.told.append))

    async def look(self) -> list[tuple[str, str, str]]:
        """(name, tenant, severity) of what this look told."""
        self.told.clear()
        await self.watch.look()
        return [(alert.name, alert.tenant, alert.severity) for alert in self.told]


async def test_nothing_wrong_is_nothing_told(world: LiveWorld) -> None:
    held = Watched(open_watched(world))
    watched(held.resource).figures = Figures(
        tenants=rows({"acme": TenantFigures()}), servers={"a": ServerFigures()}
    )
    await (await held.resource.acquire("acme", 5)).release()
    assert await held.look() == []


async def test_a_reservation_that_cannot_be_met_is_told(world: LiveWorld) -> None:
    held = Watched(open_watched(world))
    watched(held.resource).figures = Figures(tenants=rows({"acme": TenantFigures(shortfall=7)}))
    assert await held.look() == [("reservation", "acme", "error")]
    (alert,) = held.told
    assert "7 tokens" in alert.what and alert.fields == {"shortfall": 7} and alert.resource == "cache"


async def test_a_server_that_goes_on_alone_is_told(world: LiveWorld) -> None:
    held = Watched(open_watched(world))
    servers = {"a": ServerFigures(alone=True), "b": ServerFigures(alone=True), "c": ServerFigures()}
    watched(held.resource).figures = Figures(servers=servers)
    assert await held.look() == [("fallback", "", "error"), ("fallback", "", "error")]
    assert [alert.fields["server"] for alert in held.told] == ["a", "b"]


async def test_refusals_in_shadow_mode_are_told_when_there_are_more(world: LiveWorld) -> None:
    held = Watched(open_watched(world, shadow=True))
    assert await held.look() == [], "that it is in shadow mode is no event"
    watched(held.resource).open = False
    await (await held.resource.acquire("acme", 5)).release()
    assert await held.look() == [("shadow", "acme", "warning")]
    assert held.told[0].fields == {"tokens": 5}
    assert await held.look() == [], "no more since"


async def test_a_budget_is_told_by_the_tenant_and_the_percentage(world: LiveWorld) -> None:
    held = Watched(open_watched(world, "acme", "me@home", kind="quota"))
    assert await held.look() == []
    assert await held.look() == []
    (tell,) = watched(held.resource).takers
    for account, percent in (("acme@2026-11", 80), ("acme@2026-11", 100), ("me@home", 95)):
        tell(account, percent)
    assert [(alert.name, alert.tenant, alert.severity) for alert in held.told] == [
        ("budget", "acme", "warning"),
        ("budget", "acme", "error"),
        ("budget", "me@home", "warning"),
    ]
    assert held.told[1].fields == {"account": "acme@2026-11", "percent": 100}


async def test_faulty_figures_do_not_end_the_watch(
    world: LiveWorld, caplog: pytest.LogCaptureFixture
) -> None:
    held = Watched(open_watched(world))
    watched(held.resource).figures = 5
    assert await held.look() == []
    watched(held.resource).figures = Figures(tenants={"acme": TenantFigures(shortfall=1)})
    assert await held.look() == [("reservation", "acme", "error")]


async def test_a_daemon_watches_and_counts_what_it_told(
    make_policy: MakePolicy, serve_policy: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bursar.runtime.watch.WATCH_S", 0.01)
    daemon = await serve_policy(make_policy({"shadow": True}))
    resource = daemon.host.resources["llm"]
    wanted = 'bursar_alerts_total{alert="shadow",resource="llm"} 1'
    assert daemon.http_at is not None
    async with resource.acquire("beta", 100), asyncio.timeout(10):
        while wanted not in (await get(daemon.http_at, "/metrics"))[1].splitlines():
            await asyncio.sleep(0.01)
    (alert,) = (await resource.statistics()).alerts
    assert (alert.name, alert.tenant) == ("shadow", "beta")
