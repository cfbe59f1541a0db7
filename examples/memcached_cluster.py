"""Reservations over two memcached servers: acme gets its share wherever its keys are.

memcached -p 11311 & memcached -p 11312 &
python examples/memcached_cluster.py 127.0.0.1:11311 127.0.0.1:11312
"""

import asyncio
import sys
import zlib
from collections import Counter

import bursar
from bursar.integrations.memcached_backend import MemcachedBackend
from bursar.policy import parse
from bursar.rates.resource import open_server

POLICY = parse("""
[resource.cache]
kind = "rate"
servers = { a = "150/s", b = "150/s" }

[resource.cache.tenant]
acme = { reservation = "120/s", limit = "200/s" }
greedy = { limit = "150/s" }
""")
SECONDS = 4


class Cluster:
    def __init__(self, servers: dict[str, bursar.Resource], backends: dict[str, MemcachedBackend]) -> None:
        self.servers, self.backends = servers, backends
        self.done: Counter[str] = Counter()

    async def get(self, tenant: str, key: str) -> bytes | None:
        """Waits for the tenant's turn at the server that has the key, then asks it."""
        server = "ab"[zlib.crc32(key.encode()) % 2]
        async with self.servers[server].acquire(tenant, wait=60):
            value = await self.backends[server].get(key)
        self.done[tenant] += 1
        return value

    async def keep_asking(self, tenant: str, number: int) -> None:
        while True:
            number += 1
            await self.get(tenant, f"{tenant}/{number % 100}")


async def main(addresses: list[str]) -> None:
    backends = {name: MemcachedBackend(address) for name, address in zip("ab", addresses, strict=True)}
    for backend in backends.values():
        await backend.open()
        await backend.set("acme/1", b"hello")
    async with await bursar.connect(POLICY) as b:
        servers = {name: await open_server(b.resource("cache"), name) for name in "ab"}
        cluster = Cluster(servers, backends)
        work = [cluster.keep_asking("acme", 7 * number) for number in range(20)]
        work += [cluster.keep_asking("greedy", 7 * number) for number in range(80)]
        tasks = [asyncio.create_task(one) for one in work]
        await asyncio.sleep(1)
        before = Counter(cluster.done)
        await asyncio.sleep(SECONDS)
        for tenant in ("acme", "greedy"):
            print(f"{tenant}: {(cluster.done[tenant] - before[tenant]) / SECONDS:.0f} a second")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for backend in backends.values():
        await backend.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("give the addresses of two memcached servers: HOST:PORT HOST:PORT")
    asyncio.run(main(sys.argv[1:]))
