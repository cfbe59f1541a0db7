"""A gateway in front of a language model: `python -m bursar_lab.experiments.quotas.gateway_client ADDRESSES
DIARY SEED REQUESTS SECONDS CUSTOMERS`, a process of a day's callers.

Each request takes a request a minute, its tokens of the tokens a minute, and of the month's budget, all
at once; the answer is streamed, may take more than was reserved, and now and then fails. Some have a key, and
are asked again with it, at whichever daemon answers, until that is decided. What a request is about to be
settled with is written down first: if anything dies then, it is settled by its id later, with that number.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import bursar
from bursar.errors import BursarError
from bursar.resource.grants import Grant
from bursar.runtime.loops import new_event_loop

AT_ONCE = 24
WAIT_S = 2.0
TOKENS_MAX = 600
KEYED, FAILING, LONG = 0.1, 0.03, 0.1
"""Parts of the requests: with a key, whose work fails, whose answer is longer than was reserved."""

RETRIES_MAX = 40
RETRY_S = 0.25
BUDGET = "budget"


class Caller:
    """`said` counts answers, and `waits_ms` is what callers waited for theirs."""

    def __init__(self, b: bursar.Bursar, diary: Path, rng: random.Random, customers: int) -> None:
        self.said: Counter[str] = Counter()
        self.waits_ms: list[float] = []
        self._b = b
        self._rng = rng
        self._customers = customers
        self._diary = os.open(diary, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def _write(self, *line: object) -> None:
        os.write(self._diary, json.dumps(line).encode() + b"\n")

    async def call(self, number: str) -> None:
        """One request, from its permission to its settlement."""
        customer = f"customer-{int(self._customers * self._rng.random() ** 2)}"
        tokens = self._rng.randrange(20, TOKENS_MAX)
        began = time.perf_counter()
        try:
            if self._rng.random() < KEYED:
                budget = await self._acquire_keyed(customer, tokens, number)
            else:
                amounts = {"rpm": 1, "tpm": tokens, BUDGET: tokens}
                budget = (await self._b.acquire_all(customer, amounts, wait=WAIT_S)).grants[BUDGET]
        except bursar.Refused:
            self.said["refused"] += 1
        except (bursar.Unknown, BursarError):
            self.said["unknown"] += 1
        else:
            self.waits_ms.append((time.perf_counter() - began) * 1e3)
            await self._answer(budget, customer, tokens)

    async def _acquire_keyed(self, customer: str, tokens: int, key: str) -> Grant:
        """The minutes first; the month's by a key, asked for again until it is decided."""
        await self._b.acquire_all(customer, {"rpm": 1, "tpm": tokens}, wait=WAIT_S)
        for _ in range(RETRIES_MAX):
            try:
                return await self._b.resource(BUDGET).acquire(customer, tokens, key=key, wait=WAIT_S)
            except bursar.Unknown:
                self.said["asked again"] += 1
                await asyncio.sleep(RETRY_S)
        raise bursar.Unknown(f"{key} was not decided in {RETRIES_MAX} times")

    async def _answer(self, grant: Grant, customer: str, tokens: int) -> None:
        """Streamed in parts; the end is written down, then told."""
        used = 0
        if self._rng.random() >= FAILING:
            aim = tokens * 5 // 4 if self._rng.random() < LONG else self._rng.randrange(1, tokens + 1)
            used = await self._stream(grant, aim)
        self._write(grant.id, customer, used)
        try:
            grant.settle(used)
            await grant.release()
            self.said["settled"] += 1
        except (bursar.Unknown, BursarError):
            self.said["settled later"] += 1

    async def _stream(self, grant: Grant, aim: int) -> int:
        part = max(1, aim // 4)
        while (done := grant.used or 0) < aim:
            try:
                await grant.spend(min(part, aim - done))
            except (bursar.Refused, bursar.Unknown, BursarError):
                self.said["cut off"] += 1
                break
            await asyncio.sleep(0)
        return grant.used or 0


def draw_day(requests: int, seconds: float) -> list[float]:
    """When each request comes: little at night, most in the afternoon."""
    slots = 96
    weights = [1.2 - math.cos(2 * math.pi * (slot / slots - 1 / 8)) for slot in range(slots)]
    when: list[float] = []
    total, begun = sum(weights), 0.0
    for slot, weight in enumerate(weights):
        begun += requests * weight / total
        count = round(begun) - len(when)
        when += [(slot + place / max(1, count)) * seconds / slots for place in range(count)]
    return when


async def live(addresses: str, diary: Path, seed: int, requests: int, seconds: float, customers: int) -> None:
    when = iter(enumerate(draw_day(requests, seconds)))
    async with await bursar.connect(addresses) as b:
        caller = Caller(b, diary, random.Random(seed), customers)
        began = time.perf_counter()

        async def work() -> None:
            for number, at in when:
                await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
                await caller.call(f"{seed}-{number}")

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    waits = sorted(caller.waits_ms)
    print(json.dumps({"said": caller.said, "waits_ms": waits[:: max(1, len(waits) // 10_000)]}))


if __name__ == "__main__":
    _, addresses, diary, seed, requests, seconds, customers = sys.argv
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(live(addresses, Path(diary), int(seed), int(requests), float(seconds), int(customers)))
