"""What a daemon says of itself over HTTP, from before its resources are open until it has stopped.

/v1        the verbs (`bursar.api`), once the resources are open
/live      200: the process answers
/ready     200 while an acquire would be decided for every resource; else 503, and which are not ready
/metrics   Prometheus text; with `[daemon] metrics_token_file`, only for who shows the token
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bursar.api.desk import Desk
from bursar.api.pages import Answer
from bursar.fleet.rights import Rights
from bursar.policy import Policy
from bursar.runtime.exposition import Exposition
from bursar.runtime.host import Host
from bursar.runtime.http import Http
from bursar.runtime.routes import Address
from bursar.runtime.scrapes import ResourcesMetrics, Scrapes
from bursar.runtime.slices import run_in_slices

Describe = Callable[[Exposition], None]


class Reports:
    """Answers for one daemon. `stopping` is set when it takes nothing new."""

    def __init__(self, policy: Policy) -> None:
        settings = policy.daemon
        self.stopping = False
        self._policy = policy
        self._host: Host | None = None
        self._describe: Describe | None = None
        self._metrics = ResourcesMetrics(settings.metrics_tenants)
        self._envoy_metrics = ResourcesMetrics(settings.metrics_tenants)
        self.envoy: Callable[[], Mapping[str, Any]] = dict
        """What is counted of Envoys, by resource."""
        self._scrapes = Scrapes(self._export)
        pages = {"/live": self._say_live, "/ready": self._say_ready, "/metrics": self._scrapes.answer}
        self._http = Http(settings, pages)

    async def listen(self) -> Address | None:
        """Where it answers; None if it does not."""
        return await self._http.listen()

    def open(self, host: Host, describe: Describe, rights: Rights) -> None:
        """The resources are open. `describe` adds what the daemon counts beside them."""
        self._host = host
        self._describe = describe
        self._http.open(Desk(host.world, host.resources), rights)

    async def close(self) -> None:
        await self._http.close()
        self._scrapes.close()

    @property
    def is_up(self) -> bool:
        return self._host is not None and self._host.world.node.alive and not self.stopping

    def find_not_ready(self) -> list[str]:
        """The resources for which an acquire would not be decided now."""
        if not self.is_up or self._host is None:
            # Whoever has its policy from the store knows of no resource before it is up, and is not ready.
            return list(self._policy.resources) or ["policy"]
        if not self._host.resources:
            return ["policy"]  # there is none in the store yet
        return [name for name, found in self._host.resources.items() if not found.decider.is_ready()]

    async def _say_live(self) -> Answer:
        return Answer.json(200, {"live": True, "name": self._policy.daemon.name})

    async def _say_ready(self) -> Answer:
        waiting = self.find_not_ready()
        said = {"ready": not waiting, "not_ready": waiting, **self._say_version()}
        return Answer.json(503 if waiting else 200, said)

    def _say_version(self) -> dict[str, int | str]:
        """Which policy the node runs, and why not the newest."""
        if self._host is None:
            return {}
        record = self._host.membership.follower.record
        return {"policy_version": record.version, "policy_problem": record.problem}

    async def _export(self, text: Exposition) -> None:
        text.add("bursar_up", "gauge", "whether the daemon takes requests", {}, self.is_up)
        if self._describe is not None:
            self._describe(text)
        self._describe_http(text)
        if self._host is not None:
            await self._metrics.export(text, self._host.resources)
        for name, found in self.envoy().items():
            sizes = {tenant: row.assigned for tenant, row in found.tenants.items()}
            labels = {"resource": name, "kind": "rate"}
            metrics = self._envoy_metrics.of(name)
            await run_in_slices(metrics.export_struct(text, "bursar_envoy", labels, found, sizes))

    def _describe_http(self, text: Exposition) -> None:
        desk = self._http.desk
        grants = desk.holdings.counts if desk is not None else {}
        for event, count in {**self._http.counts, **grants}.items():
            what = "what happened on its HTTP connections, and to what was granted over them"
            text.add("bursar_http_events_total", "counter", what, {"event": event}, count)
        held = len(desk.holdings) if desk is not None else 0
        text.add("bursar_http_grants", "gauge", "grants that are held over HTTP", {}, held)
