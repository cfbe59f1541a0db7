"""`bursar experiment rates-costs`: large requests beside reservations, and tenants that are even in tokens.

- A price of ten times a server's second is refused at once; one of a whole second goes again and again,
  beside a reservation of three quarters of the server.
- A flood of requests that cost 1 to 1,000 tokens, beside a reservation of half of the server.
- A limit of 100 a second and a request of 60 waiting at each of two servers: in this process, and at two
  daemons.

The bound of a wait is the one that `bursar.rates.scheduler` and `bursar.rates.fronts` state; a quarter of a
second is added for the machine.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bursar.errors import Refused
from bursar_lab.experiments.rates_surface.callers import Callers, check
from bursar_lab.experiments.rates_surface.places import open_fleet, open_here, open_servers

MET_MIN = 0.99
EVEN_MAX = 1.02
MACHINE_S = 0.25
SETTLE_S = 2.0

POLICY = """
[resource.api]
kind = "rate"
servers = {{ {servers} }}
[resource.api.tenant]
{tenants}
"""

Row = dict[str, Any]
Bars = list[dict[str, Any]]


def costs(out: Path, quick: bool) -> dict[str, Any]:
    seconds = 20 if quick else 60
    table: list[Row] = []
    bars: Bars = []
    for case in (_price, _flood, _whole_here, _whole_at_daemons):
        rows, found = asyncio.run(case(seconds))
        table += rows
        bars += found
    return {"table": table, "bars": bars, "ok": all(bar["met"] for bar in bars)}


def _tell(case: str, tenant: str, callers: Callers, bound_s: float | None = None) -> Row:
    periods = callers.full_periods(3)
    return {
        "case": case,
        "tenant": tenant,
        "tokens": callers.tokens,
        "least a period": min(periods),
        "most a period": max(periods),
        "longest wait s": round(callers.longest, 2),
        "bound s": "" if bound_s is None else round(bound_s, 2),
    }


def _check_met(case: str, callers: Callers, reservation: int) -> dict[str, Any]:
    part = min(callers.full_periods(3)) / reservation
    return check(f"{case}: the reservation in every period, at least {MET_MIN}", part, part >= MET_MIN)


def _check_wait(case: str, callers: Callers, bound_s: float) -> dict[str, Any]:
    bar = f"{case}: the longest wait in seconds, at most the bound of {bound_s:.2f}"
    return check(bar, callers.longest, callers.longest <= bound_s)


async def _price(seconds: float) -> tuple[list[Row], Bars]:
    case = "price"
    policy = POLICY.format(servers='a = "400/s"', tenants='gold = { reservation = "300/s" }\nfree = {}')
    async with open_here(policy) as api:
        gold = Callers(api, "gold", 20)
        await asyncio.sleep(SETTLE_S)
        refused_s = await _time_refusal(api, 4000)
        free = Callers(api, "free", 1, [400])
        await asyncio.sleep(max(seconds, 25))
        await gold.stop()
        await free.stop()
    bound_s = (2 * 400 + 400 + 1) / 100 + MACHINE_S
    bars = [
        check(f"{case}: seconds until ten times a server's second is refused", refused_s, refused_s < 0.05),
        _check_met(case, gold, 300),
        _check_wait(case, free, bound_s),
    ]
    return [_tell(case, "gold", gold), _tell(case, "free", free, bound_s)], bars


async def _time_refusal(api: Any, amount: int) -> float:
    began = time.monotonic()
    try:
        await api.acquire("free", amount, wait=60)
    except Refused:
        return time.monotonic() - began
    return float("inf")


async def _flood(seconds: float) -> tuple[list[Row], Bars]:
    case = "flood"
    tenants = 'gold = { reservation = "20k/s", limit = "20k/s" }\nx = {}\ny = {}\nz = {}\n'
    async with open_here(POLICY.format(servers='a = "40k/s"', tenants=tenants)) as api:
        random = range(1, 1001)
        gold = Callers(api, "gold", 20, [100])
        flood = {"x": Callers(api, "x", 1, random), "y": Callers(api, "y", 5, random)}
        flood["z"] = Callers(api, "z", 50, [20])
        await asyncio.sleep(seconds)
        for callers in (gold, *flood.values()):
            await callers.stop()
    bound_s = (3 * 1000 + 1000 + 20 + 1000) / 20_000 + MACHINE_S
    served = [callers.tokens for callers in flood.values()]
    even = max(served) / min(served)
    bars = [
        _check_met(case, gold, 20_000),
        check(f"{case}: most tokens by least, of equal weights, at most {EVEN_MAX}", even, even <= EVEN_MAX),
        _check_wait(case, flood["x"], bound_s),
    ]
    rows = [_tell(case, "gold", gold)]
    rows += [_tell(case, name, each, bound_s if name == "x" else None) for name, each in flood.items()]
    return rows, bars


WHOLE = POLICY.format(servers='a = "1000/s", b = "1000/s"', tenants='acme = { limit = "100/s" }')


async def _whole_here(seconds: float) -> tuple[list[Row], Bars]:
    async with open_here(WHOLE) as api:
        return await _watch_whole("60 of 100, here", await open_servers(api, ("a", "b")), seconds / 2)


async def _whole_at_daemons(seconds: float) -> tuple[list[Row], Bars]:
    async with open_fleet(WHOLE, ("a", "b")) as doors:
        return await _watch_whole("60 of 100, two daemons", doors, seconds / 2)


async def _watch_whole(case: str, doors: list[Any], seconds: float) -> tuple[list[Row], Bars]:
    both = [Callers(door, "acme", 1, [60]) for door in doors]
    await asyncio.sleep(seconds)
    for callers in both:
        await callers.stop()
    bound_s = len(doors) + 1 + MACHINE_S
    most = max((both[0].periods + both[1].periods).values())
    bars = [_check_wait(f"{case}: at {name}", each, bound_s) for name, each in zip("ab", both, strict=True)]
    bars.append(check(f"{case}: tokens in a period, at most the limit of 100", most, most <= 100))
    least = min(each.tokens for each in both)
    bars.append(check(f"{case}: tokens at each server, at least", least, least >= 60 * (seconds / 2 - 3)))
    rows = [_tell(case, f"acme at {name}", each, bound_s) for name, each in zip("ab", both, strict=True)]
    return rows, bars
