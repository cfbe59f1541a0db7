"""Metrics and health of the quota service for Envoys."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.runtime.asking import get
from tests.runtime.promtool import check_with_promtool

from bursar.integrations.envoy.reports import make_http
from bursar.integrations.envoy.statistics import FleetStatistics, FleetTenantStatistics
from bursar.policy import parse

POLICY = """
daemon = { http = "127.0.0.1:0", metrics_tenants = 1 }
[resource.api]
kind = "rate"
servers = { a = "100/s" }
tenant = { acme = { limit = "10/s" } }
"""


def make_row(assigned: float) -> FleetTenantStatistics:
    return FleetTenantStatistics(demand=1.5, assigned=assigned, in_force=assigned, shortfall=0.0)


@pytest.mark.needs("promtool")
async def test_a_fleet_is_exported_with_bounded_labels() -> None:
    tenants = {"small": make_row(1.0), "large": make_row(5.0), "tiny": make_row(0.5)}
    found = FleetStatistics(envoys=2, round_s=0.25, events={"reports": 7}, tenants=tenants)
    fleet = SimpleNamespace(statistics=lambda: found)
    http = make_http(parse(POLICY), {"api": fleet})  # type: ignore[dict-item]
    at = await http.listen()
    assert at is not None
    assert (await get(at, "/live"))[0] == 200
    assert (await get(at, "/ready"))[0] == 200
    status, text = await get(at, "/metrics")
    await http.close()
    assert status == 200
    both = 'resource="api",kind="rate"'
    for line in (
        f"bursar_envoy_envoys{{{both}}} 2",
        f"bursar_envoy_round_seconds{{{both}}} 0.25",
        f'bursar_envoy_events_total{{{both},event="reports"}} 7',
        f'bursar_envoy_tenant_assigned{{{both},tenant="large"}} 5.0',
        f'bursar_envoy_tenant_assigned{{{both},tenant="other"}} 1.5',
    ):
        assert line in text.splitlines()
    check_with_promtool(text)
