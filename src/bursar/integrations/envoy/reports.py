"""Metrics and health of the quota service: where, and for whom, as the policy's daemon has them."""

from __future__ import annotations

from collections.abc import Mapping

from bursar.integrations.envoy.server import Fleet
from bursar.policy import Policy
from bursar.runtime.exposition import Exposition
from bursar.runtime.host import read_token
from bursar.runtime.http_server import Answer, HttpServer
from bursar.runtime.reports import write_json
from bursar.runtime.scrapes import ResourcesMetrics, Scrapes
from bursar.runtime.slices import run_in_slices


def make_http_server(policy: Policy, fleets: Mapping[str, Fleet]) -> HttpServer:
    """It is ready when it listens: an Envoy that connects is answered at once."""
    token_file = policy.daemon.metrics_token_file
    metrics = ResourcesMetrics(policy.daemon.metrics_tenants)

    async def export(text: Exposition) -> None:
        for name, fleet in fleets.items():
            found = fleet.statistics()
            sizes = {tenant: row.assigned for tenant, row in found.tenants.items()}
            labels = {"resource": name, "kind": "rate"}
            await run_in_slices(metrics.of(name).export_struct(text, "bursar_envoy", labels, found, sizes))

    async def say_live() -> Answer:
        return write_json(200, {"live": True, "domains": list(fleets)})

    async def say_ready() -> Answer:
        return write_json(200, {"ready": True, "not_ready": []})

    routes = {"/live": say_live, "/ready": say_ready, "/metrics": Scrapes(export).answer}
    token = read_token(token_file) if token_file else None
    return HttpServer(routes, token=token, guarded=("/metrics",))
