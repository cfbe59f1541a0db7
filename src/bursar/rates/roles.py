"""Which servers a rate has, which of them run on this node, and as which life."""

from __future__ import annotations

from zlib import crc32

from bursar.policy.values import RatePolicy, Server
from bursar.world import World

RUNS_MAX = 2**12
LIVES_MAX = 2**40
HOSTS_MAX = 2**22


def find_servers(world: World, policy: RatePolicy) -> dict[str, Server]:
    """All there are: those that are listed, whether they are up or not, and, where the policy has terms for
    any server, every node that is up."""
    if policy.any_server is None:
        return dict(policy.servers)
    others = [name for name in (*world.fleet.nodes(), world.name) if name not in policy.servers]
    return {**policy.servers, **dict.fromkeys(others, policy.any_server)}


def choose_local(
    world: World, policy: RatePolicy, servers: dict[str, Server], *, among_others: bool
) -> list[str]:
    """Those that run here. A node that is, or was, `among_others` runs the server of its own name: that the
    others cannot be seen does not mean that they are gone. One that is alone runs them all, unless it is
    itself one of them (then the others are still to come) or they are its peers."""
    up = world.fleet.nodes()
    enters_later = world.name not in up and bool(world.fleet.guards())
    if enters_later or among_others or (up and world.name in policy.servers):
        return [world.name] if world.name in servers else []
    peers = set(world.network.peers())
    local = [server for server in policy.servers if server not in peers]
    return local or [server for server in servers if server == world.name]


def find_life(world: World, server: str, run: int) -> int:
    """The number of a life of a server: larger in each life of the node, and in each run of the server within
    it; and another one on every node that may run it."""
    host = 0 if server == world.name else 1 + crc32(world.name.encode()) % (HOSTS_MAX - 1)
    assert run < RUNS_MAX, "a server does not come and go so often within one life of a node"
    return host * LIVES_MAX + world.incarnation * RUNS_MAX + run
