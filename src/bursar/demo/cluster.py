"""Five nodes in one process: a controller, and four servers that it places tokens on.

Each node has its own sockets, its own state and its own session of the store, so a node can be
killed and started again while the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar.policy import Policy, build
from bursar.policy.values import ResourcePolicy
from bursar.resource.door import Resource
from bursar.runtime.figures import read_figures
from bursar.runtime.host import Host
from bursar.runtime.kinds import MODULES

CONTROLLER = "controller"
SERVERS = ("a", "b", "c", "d")
CAPACITY = 200
"""Requests a second of one server: little enough for a laptop that does other things too."""

RATE = "api"
SHARE = "disk"
QUOTA = "budget"
CLAIM = "machines"
POOL = "records"

TENANTS: dict[str, dict[str, Any]] = {
    "acme": {"reservation": "150/s", "limit": "300/s", "weight": 2},
    "globex": {"reservation": "120/s", "limit": "240/s"},
    "initech": {"reservation": "80/s", "limit": "200/s"},
    "umbrella": {"reservation": "60/s", "limit": "120/s"},
    "hooli": {"limit": "150/s"},
    "greedy": {"limit": "250/s"},
}

LENDERS: dict[str, dict[str, Any]] = {
    "simulation": {"weight": 3},
    "analysis": {"weight": 1},
    "backup": {"weight": 1},
}


READERS: dict[str, dict[str, Any]] = {
    "catalogue": {"reservation": "400/s"},
    "orders": {"reservation": "300/s", "limit": "500/s"},
    "reports": {},
}

SPENDERS = ("acme/search", "globex")
BUDGET_NODES = (CONTROLLER, "a")
"""A budget is one total over several nodes: two are enough to see it."""


def describe_rate(*, shadow: bool) -> dict[str, Any]:
    return {
        "kind": "rate",
        "period": "1s",
        "servers": dict.fromkeys(SERVERS, f"{CAPACITY}/s"),
        "shadow": shadow,
        "tenant": TENANTS,
    }


def describe_others() -> dict[str, dict[str, Any]]:
    """What runs beside the rate, as far as this version has the kinds."""
    wanted: dict[str, dict[str, Any]] = {
        SHARE: {"kind": "share", "capacity": "300/s", "tenant": LENDERS},
        QUOTA: {
            "kind": "quota",
            "unit": "tokens",
            "mode": "fast",
            "block": 500,
            "tenant": {
                "acme": {"limit": 400_000},
                "acme/search": {"limit": 60_000},
                "globex": {"limit": 300_000},
            },
        },
        CLAIM: {"kind": "claim", "paths": True, "dead_holder": "requeue"},
        POOL: {"kind": "pool", "capacity": "1k/s", "batch": 50, "tenant": READERS},
    }
    return {name: table for name, table in wanted.items() if find_spec(MODULES[table["kind"]])}


class Cluster:
    """The nodes by name. A server that was killed is not among them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Nodes must know each other's before the first of them listens.
        self._ports = {name: find_free_port() for name in (CONTROLLER, *SERVERS)}
        self.shadow = True
        self.hosts: dict[str, Host] = {}
        self.left_out: dict[str, str] = {}

    async def open(self) -> None:
        _compile()
        await self.start(CONTROLLER)
        for server in SERVERS:
            await self.start(server)

    async def start(self, name: str) -> None:
        """One more life of a node."""
        host = await Host.open(self._policy(name), listen=f"127.0.0.1:{self._ports[name]}")
        self.hosts[name] = host
        if name in BUDGET_NODES:
            await self._add_others(host, only_budget=name != CONTROLLER)

    async def _add_others(self, host: Host, only_budget: bool) -> None:
        """A kind that this version cannot open yet is left out, and named."""
        for name, table in describe_others().items():
            if only_budget and name != QUOTA:
                continue
            try:
                await host.add(_read({name: table}, name))
            except BursarError as error:
                self.left_out[name] = str(error)

    def _policy(self, name: str) -> Policy:
        others = {peer: f"127.0.0.1:{port}" for peer, port in self._ports.items() if peer != name}
        policy = build(
            {
                "store": f"sqlite://{self._folder}/store.db",
                "daemon": {"name": name, "state": str(self._folder / name), "peers": others},
                "resource": {RATE: describe_rate(shadow=self.shadow)},
            },
            "the demo's policy",
        )
        # In memory under a name, which only nodes of one process can share: a slow disk does not
        # disturb the demo, and nothing is to outlast it.
        return msgspec.structs.replace(policy, store="memory://bursar-demo")

    async def set_shadow(self, shadow: bool) -> None:
        """What editing the policy and sending SIGHUP does."""
        self.shadow = shadow
        policy = _read({RATE: describe_rate(shadow=shadow)}, RATE)
        for host in self.hosts.values():
            resource: Any = host.resources[RATE]
            await resource.reconfigure(policy)

    async def kill(self, name: str) -> None:
        """As kill -9 would: first the sockets and files, then the tasks; nothing is handed over."""
        host = self.hosts.pop(name)
        host.world.node.crash(RuntimeError("killed by the demo"), "demo")
        await host.world.close()

    @property
    def servers(self) -> list[str]:
        """Those that live."""
        return [name for name in SERVERS if name in self.hosts]

    def rate(self, server: str) -> Resource:
        return self.hosts[server].resources[RATE]

    def other(self, name: str, node: str = CONTROLLER) -> Resource | None:
        """A resource beside the rate, if this version has its kind."""
        return self.hosts[node].resources.get(name)

    def tokens(self) -> dict[str, Mapping[str, Any]]:
        """What each living server has been given, by server and tenant."""
        return {
            name: read_figures(self.rate(name).snapshot())["servers"][name]["tenants"]
            for name in self.servers
        }

    async def close(self) -> None:
        for host in reversed(list(self.hosts.values())):
            await host.close()


def _read(resources: Mapping[str, Any], name: str) -> ResourcePolicy:
    return build({"resource": dict(resources)}, "the demo's policy").resources[name]


def _compile() -> None:
    """Before anything is measured: the first run on a machine compiles the kernels, which takes a
    while and would stand in everyone's way."""
    from bursar.allocation.allowances import allocate_allowances

    allocate_allowances([[2, 1], [1, 2]], [2, 2], [2, 2], [3, 3])
