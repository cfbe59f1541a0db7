"""`python -m bursar_lab.experiments.pools.program POLICY TENANT COUNTS`: a program that always wants more.

It counts what it was granted in a mapped file, by period, before it uses it: whoever kills it can still
read that. The first number there says whether its monitor leads."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import signal
import struct
import sys
from pathlib import Path

import bursar

COUNT = struct.Struct("<Q")
PERIODS_MAX = 1_000
AMOUNT = 50
CALLERS = 6
LOOK_S = 0.05


async def _call(records: bursar.Resource, tenant: str, counts: mmap.mmap) -> None:
    while True:
        with contextlib.suppress(bursar.Refused, bursar.Unknown):  # there is nobody else to say so
            grant = await records.acquire(tenant, AMOUNT, wait=2)
            if grant.period:
                at = COUNT.size * grant.period
                COUNT.pack_into(counts, at, COUNT.unpack_from(counts, at)[0] + AMOUNT)


async def _look(b: bursar.Bursar, counts: mmap.mmap) -> None:
    while True:
        part = (await b.statistics("records")).part
        COUNT.pack_into(counts, 0, part.leading)
        await asyncio.sleep(LOOK_S)


async def work(policy: str, tenant: str, counts: mmap.mmap) -> None:
    """Until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with await bursar.connect(policy) as b:
        working = [_call(b.resource("records"), tenant, counts) for _ in range(CALLERS)]
        tasks = [asyncio.ensure_future(each) for each in (*working, _look(b, counts))]
        await ended.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def main(policy: str, tenant: str, path: str) -> None:
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as counts:
        asyncio.run(work(policy, tenant, counts))


if __name__ == "__main__":
    main(*sys.argv[1:4])
