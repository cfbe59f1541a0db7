"""Metrics and health of the quota service: where, and for whom, as the policy's daemon has them."""

from __future__ import annotations

from collections.abc import Mapping

from bursar.api.pages import Answer
from bursar.integrations.envoy.server import Fleet
from bursar.policy import Policy
from bursar.runtime.exposition import Exposition
from bursar.runtime.http import Http
from bursar.runtime.scrapes import ResourcesMetrics, Scrapes
from bursar.runtime.slices import run_in_slices


def make_http(policy: Policy, fleets: Mapping[str, Fleet]) -> Http:
    """It is ready when it listens: an Envoy that connects is answered at once."""
    metrics = ResourcesMetrics(policy.daemon.metrics_tenants)

    async def export(text: Exposition) -> None:
        for name, fleet in fleets.items():
            found = fleet.statistics()
            sizes = {tenant: row.assigned for tenant, row in found.tenants.items()}
            labels = {"resource": name, "kind": "rate"}
            await run_in_slices(metrics.of(name).export_struct(text, "bursar_envoy", labels, found, sizes))

    async def say_live() -> Answer:
        return Answer.json(200, {"live": True, "domains": list(fleets)})

    async def say_ready() -> Answer:
        return Answer.json(200, {"ready": True, "not_ready": []})

    pages = {"/live": say_live, "/ready": say_ready, "/metrics": Scrapes(export).answer}
    return Http(policy.daemon, pages, has_api=False)
