"""A daemon with a load of its own, as a process: `python -m bursar_lab.experiments.quotas.worker POLICY`.

It writes to a file what its tenants meant to acquire and what they were told, each line before the
next step, so that the file knows even if the process is killed. With keys a new life asks again for
what the last one did not learn, and so every unit that is charged is one that somebody knows of.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path

import msgspec

from bursar.errors import Refused, Unknown
from bursar.policy import Policy, load
from bursar.resource.door import Resource
from bursar.runtime.daemon import Daemon

RESOURCE, TENANT = "budget", "acme"
AMOUNT_MAX = 9
PAUSE_S = 0.15
WAIT_S = 0.5
ASKERS = 2
STOP = "stop"
"""A file of this name beside the policy ends the load."""

WIRING = "wiring.json"
"""Where each node listens."""


class Diary:
    """What was meant (`? key amount`), what was told (`+ key amount`), what was refused (`- key`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def write(self, sign: str, key: str, amount: int = 0) -> None:
        os.write(self._file, f"{sign} {key} {amount}\n".encode())

    def pending(self) -> dict[str, int]:
        return self.read(self.path)[0]

    @staticmethod
    def read(path: Path) -> tuple[dict[str, int], int]:
        """(what was meant and has no answer yet, units told)."""
        open_, told = {}, 0
        for line in path.read_text().splitlines() if path.exists() else []:
            sign, key, amount = line.split()
            if sign == "?":
                open_[key] = int(amount)
            else:
                open_.pop(key, None)
                told += int(amount)
        return open_, told


async def ask(resource: Resource, diary: Diary, key: str, amount: int, keyed: bool) -> None:
    try:
        grant = await resource.acquire(TENANT, amount, wait=WAIT_S, key=key if keyed else None)
    except Refused:
        diary.write("-", key)
    except Unknown:
        pass  # it may be asked again, with the same key
    else:
        diary.write("+", key, amount)
        await grant.release()


async def load_resource(resource: Resource, diary: Diary, who: str, stop: Path, keyed: bool) -> None:
    rng = random.Random(who)
    number = 0
    while not os.access(stop, os.F_OK):
        number += 1
        key, amount = f"{who}-{number}", rng.randint(1, AMOUNT_MAX)
        diary.write("?", key, amount)
        await ask(resource, diary, key, amount, keyed)
        await asyncio.sleep(rng.uniform(0, 2 * PAUSE_S))


async def resolve(resource: Resource, diary: Diary) -> None:
    """Learn what became of everything that an earlier life asked for."""
    while pending := diary.pending():
        for key, amount in pending.items():
            await ask(resource, diary, key, amount, keyed=True)


def _wire(policy: Policy, wiring: Path) -> Policy:
    """A policy file may not name peers on other addresses beside an SQLite store, which other hosts
    could not see. Here they are on one host, in two network namespaces."""
    addresses: dict[str, str] = json.loads(wiring.read_text())
    listen = addresses.pop(policy.daemon.name)
    daemon = msgspec.structs.replace(policy.daemon, listen=listen, peers=addresses)
    return msgspec.structs.replace(policy, daemon=daemon)


async def run(policy_file: Path) -> int:
    policy = _wire(load(policy_file), policy_file.parent / WIRING)
    daemon = await Daemon.open(policy)
    resource = daemon.host.resources[RESOURCE]
    keyed = policy.resources[RESOURCE].mode == "exact"  # type: ignore[union-attr]
    diary, stop = Diary(policy_file.with_suffix(".diary")), policy_file.parent / STOP
    who = f"{policy.daemon.name}.{daemon.host.world.incarnation}"  # a key holds for all nodes

    async def use() -> None:
        askers = (load_resource(resource, diary, f"{who}.{n}", stop, keyed) for n in range(ASKERS))
        await asyncio.gather(*askers)
        if keyed:
            await resolve(resource, diary)
        os.close(os.open(policy_file.with_suffix(".done"), os.O_CREAT | os.O_WRONLY, 0o600))

    daemon.host.world.spawn(use(), "load")
    return await daemon.run()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(Path(sys.argv[1]))))
