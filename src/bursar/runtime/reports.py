"""What a daemon says of itself over HTTP, from before its resources are open until it has stopped.

/live      200: the process answers
/ready     200 while an acquire would be decided for every resource; else 503, and which are not ready
/metrics   Prometheus text; with `[daemon] metrics_token_file`, only for who shows the token
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from bursar.policy import Policy
from bursar.runtime.exposition import Exposition
from bursar.runtime.host import Host, read_token
from bursar.runtime.http_server import Answer, HttpServer
from bursar.runtime.routes import Address
from bursar.runtime.scrapes import ResourcesMetrics, Scrapes

Describe = Callable[[Exposition], None]


class Reports:
    """Answers for one daemon. `stopping` is set when it takes nothing new."""

    def __init__(self, policy: Policy) -> None:
        settings = policy.daemon
        token = read_token(settings.metrics_token_file) if settings.metrics_token_file else None
        self.stopping = False
        self._policy = policy
        self._host: Host | None = None
        self._describe: Describe | None = None
        self._metrics = ResourcesMetrics(settings.metrics_tenants)
        self._scrapes = Scrapes(self._export)
        routes = {"/live": self._say_live, "/ready": self._say_ready, "/metrics": self._scrapes.answer}
        self._http = HttpServer(routes, token=token, guarded=("/metrics",))

    async def listen(self) -> Address | None:
        """Where it answers; None if the policy wants no metrics."""
        at = self._policy.daemon.metrics
        return await self._http.listen(at) if at is not None else None

    def open(self, host: Host, describe: Describe) -> None:
        """The resources are open. `describe` adds what the daemon counts beside them."""
        self._host = host
        self._describe = describe

    def close(self) -> None:
        self._http.close()
        self._scrapes.close()

    @property
    def is_up(self) -> bool:
        return self._host is not None and self._host.world.node.alive and not self.stopping

    def find_not_ready(self) -> list[str]:
        """The resources for which an acquire would not be decided now."""
        if not self.is_up or self._host is None:
            return list(self._policy.resources)
        return [name for name, found in self._host.resources.items() if not found.decider.is_ready()]

    async def _say_live(self) -> Answer:
        return write_json(200, {"live": True, "name": self._policy.daemon.name})

    async def _say_ready(self) -> Answer:
        waiting = self.find_not_ready()
        return write_json(503 if waiting else 200, {"ready": not waiting, "not_ready": waiting})

    async def _export(self, text: Exposition) -> None:
        text.add("bursar_up", "gauge", "whether the daemon takes requests", {}, self.is_up)
        if self._describe is not None:
            self._describe(text)
        if self._host is not None:
            await self._metrics.export(text, self._host.resources)


def write_json(status: int, fields: dict[str, Any]) -> Answer:
    return Answer(status, "application/json", [msgspec.json.encode(fields) + b"\n"])
