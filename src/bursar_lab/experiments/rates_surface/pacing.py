"""`bursar experiment rates-pacing`: what pacing, which is on by default, costs a tenant that always waits.

A limit of 400 a second on idle servers of 2,000, forty callers; in this process and at a daemon, with one
server and with four, for several intervals. Then the tenant turns to another server each second; a
tenant with a reservation of 50 and a limit of 60; and "5 a minute". Periods are those that the grants
name; the sliding second is by this process's clock, so on a busy machine it also shows late wake-ups.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from bursar_lab.experiments.rates_surface.callers import Callers, check
from bursar_lab.experiments.rates_surface.places import open_daemon, open_here, open_servers

LIMIT, BURST, CALLERS = 400, 20, 40
STEADY_MIN, MOVING_MIN = 0.99, 0.97
INTERVALS = ("100ms", "200ms", "500ms", "auto")
SERVERS = "abcd"

POLICY = """
[resource.api]
kind = "rate"
{options}
servers = {{ {servers} }}
[resource.api.tenant]
acme = {{ {terms} }}
"""

Row = dict[str, Any]
Bars = list[dict[str, Any]]
Case = Callable[[], Coroutine[Any, Any, tuple[Row, Bars]]]


def pacing(out: Path, quick: bool) -> dict[str, Any]:
    seconds = 5.0 if quick else 10.0
    table: list[Row] = []
    bars: Bars = []
    for case in _list_cases(seconds, quick):
        row, found = asyncio.run(case())
        table.append(row)
        bars += found
    return {"table": table, "bars": bars, "ok": all(bar["met"] for bar in bars)}


def _list_cases(seconds: float, quick: bool) -> list[Case]:
    intervals = INTERVALS[1::2] if quick else INTERVALS
    steady = [
        partial(_stay, place, interval, count, seconds)
        for place in ("here", "daemon")
        for count in (1, 4)
        for interval in intervals
    ]
    moving = [partial(_move, interval, seconds + 3) for interval in intervals]
    five_s = 75.0 if quick else 115.0
    return [*steady, *moving, partial(_reserve, seconds), partial(_count_five, five_s)]


def make_policy(terms: str, servers: int = 1, options: str = "") -> str:
    names = ", ".join(f'{name} = "2000/s"' for name in SERVERS[:servers])
    return POLICY.format(options=options, servers=names, terms=terms)


def _judge(case: str, acme: Callers, least: float, limit: int, burst: int) -> tuple[Row, Bars]:
    periods, most, busiest = acme.full_periods(), max(acme.periods.values()), acme.busiest()
    row = {
        "case": case,
        "least a period": min(periods),
        "most a period": most,
        "most a sliding second": busiest,
    }
    part = min(periods) / limit
    bars = [
        check(f"{case}: of the limit in every period, at least {least}", part, part >= least),
        check(f"{case}: in a period, at most {limit}", most, most <= limit),
        check(f"{case}: in a sliding second, at most {limit} + {burst}", busiest, busiest <= limit + burst),
    ]
    return row, bars


async def _stay(place: str, interval: str, servers: int, seconds: float) -> tuple[Row, Bars]:
    policy = make_policy(f'limit = "{LIMIT}/s"', servers, f'interval = "{interval}"')
    async with (open_here if place == "here" else open_daemon)(policy) as api:
        acme = Callers(api, "acme", CALLERS)
        await asyncio.sleep(seconds)
        await acme.stop()
    return _judge(f"{place}, {interval}, {servers} servers", acme, STEADY_MIN, LIMIT, BURST)


async def _move(interval: str, seconds: float) -> tuple[Row, Bars]:
    policy = make_policy(f'limit = "{LIMIT}/s"', len(SERVERS), f'interval = "{interval}"')
    async with open_here(policy) as api:
        doors = await open_servers(api, SERVERS)
        acme = Callers(doors[0], "acme", CALLERS)
        await asyncio.sleep(0.5)
        for move in range(int(seconds)):
            acme.resource = doors[(move + 1) % len(doors)]
            await asyncio.sleep(1.0)
        await acme.stop()
    return _judge(f"moving, {interval}", acme, MOVING_MIN, LIMIT, BURST)


async def _reserve(seconds: float) -> tuple[Row, Bars]:
    async with open_here(make_policy('reservation = "50/s", limit = "60/s"')) as api:
        acme = Callers(api, "acme", CALLERS)
        await asyncio.sleep(seconds)
        await acme.stop()
    return _judge("reservation 50, limit 60", acme, 50 / 60 + 0.15, 60, 10)


async def _count_five(seconds: float) -> tuple[Row, Bars]:
    """Five at once; and from the next minute on, for those who waited, one each twelve seconds."""
    options = 'period = "1min"\ninterval = "1s"'
    async with open_here(make_policy('limit = "5/min"', options=options)) as api:
        await api.acquire("acme", wait=5)  # the first of a long period waits for the disk
        began = time.monotonic()
        at_once = 1 + sum(api.try_acquire("acme") is not None for _ in range(9))
        acme = Callers(api, "acme", 3, wait=2 * seconds)
        await asyncio.sleep(seconds)
        await acme.stop()
    later = [round(at - began) for at in acme.times]
    off = max((abs(after - before - 12) for before, after in pairwise(acme.times)), default=99.0)
    most = max(acme.periods.values(), default=0)
    bars = [
        check("5 a minute: at once, five", at_once, at_once == 5),
        check("5 a minute: after that, seconds off one each twelve, at most 1", off, off <= 1.0),
        check("5 a minute: in a minute, at most five", most, most <= 5),
    ]
    row = {
        "case": f"5 a minute: {at_once} at once, then after seconds {later}",
        "least a period": "",
        "most a period": most,
        "most a sliding second": acme.busiest() if acme.times else 0,
    }
    return row, bars
