"""Two levels beside one: as many reservations met, with hardly a message between zones; and limits that hold
while a zone is cut off. 64 servers in four places, 10,000 tenants, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bursar.policy.values import RatePolicy, RateTenant, Server
from bursar.sim.faults import Faults
from bursar.sim.loop import sleep_until
from bursar.sim.simulation import Simulation
from bursar.units import Rate
from bursar_lab.experiments.instances import draw_instance
from bursar_lab.experiments.rates_zones.world import Demand, ZonesWorld

SEED = 1
PLACES = ("ap", "eu", "sa", "us")
RATE = 4_000
RESERVED = 0.8
DEMAND = 1.1
"""What tenants ask for, over their reservations."""

GREEDY = 3.0
"""The same where limits are to be seen: twice what they may use."""

LIMIT = 1.5
WARM_PERIODS = 3
MET_APART = 0.005
MESSAGES_PART = 0.1
CUT_PERIODS = 5

Row = dict[str, Any]


def zones(out: Path, quick: bool) -> dict[str, Any]:
    servers, tenants, periods = (4, 200, 4) if quick else (16, 10_000, 5)
    rows = [
        _measure(zoned, load, moving, servers, tenants, periods)
        for load, moving in (("steady", 0.0), ("a tenth moves each second", 0.1))
        for zoned in (False, True)
    ]
    cut = _cut(servers, min(tenants, 1_000))
    bars = [*_compare(rows), *_judge(cut)]
    return {"seed": SEED, "table": rows, "cut": cut, "bars": bars, "ok": all(bar["met"] for bar in bars)}


def _make(
    zoned: bool, servers: int, tenants: int, multiple: float, moving: float, periods: int
) -> ZonesWorld:
    names = {f"{place}{number:02d}": place for place in PLACES for number in range(servers)}
    drawn = draw_instance(SEED, servers=len(names), tenants=tenants, capacity=RATE, reserved=RESERVED)
    demand = np.asarray(drawn.demand.toarray(), np.float64) / 1.1 * multiple
    terms = {
        f"tenant-{k:05d}": RateTenant(reservation=Rate(tokens), limit=Rate(max(1, int(LIMIT * tokens))))
        for k, tokens in enumerate(drawn.reservation.tolist())
    }
    policy = RatePolicy(
        name="cache",
        servers={
            name: Server(capacity=Rate(RATE), zone=place if zoned else None) for name, place in names.items()
        },
        zones=PLACES if zoned else (),
        tenants=terms,
        pacing=False,
    )
    return ZonesWorld(policy, names, Demand(demand, moving, SEED), periods + WARM_PERIODS + 1, RATE)


def _run(world: ZonesWorld) -> None:
    simulation = Simulation("rates-zones", world, SEED, faults=Faults(), keep=1)
    world.watch()
    simulation.run()


def _measure(zoned: bool, load: str, moving: float, servers: int, tenants: int, periods: int) -> Row:
    world = _make(zoned, servers, tenants, DEMAND, moving, periods)
    _run(world)
    reservation = np.array([terms.reservation.count for terms in world.policy.tenants.values()])
    measured = list(_list_measured(world, periods))
    met = [float(np.minimum(served, reservation).sum() / reservation.sum()) for served in measured]
    whole = [float((served >= 0.99 * reservation).mean()) for served in measured]
    all_periods = len(world.served)
    return {
        "load": load,
        "levels": 2 if zoned else 1,
        "reserved tokens served": round(min(met), 4),
        "tenants met": round(min(whole), 4),
        "above a limit": _count_above(world),
        "messages between places": world.messages["rate"] // all_periods,
        "kB between places": world.size["rate"] // all_periods // 1000,
    }


def _list_measured(world: ZonesWorld, periods: int) -> Iterator[Any]:
    numbers = sorted(world.served)[WARM_PERIODS:-1]
    yield from (world.served[number] for number in numbers[:periods])


def _count_above(world: ZonesWorld) -> int:
    limit = np.array([terms.limit.count for terms in world.policy.tenants.values() if terms.limit])
    return sum(int((served > limit).sum()) for number, served in world.served.items() if number)


def _compare(rows: list[Row]) -> list[dict[str, Any]]:
    bars = []
    for one, two in zip(rows[::2], rows[1::2], strict=True):
        apart = round(one["reserved tokens served"] - two["reserved tokens served"], 4)
        part = round(two["messages between places"] / one["messages between places"], 4)
        bars += [
            _bar(f"{one['load']}: two levels meet at most {MET_APART:.1%} less", apart, apart <= MET_APART),
            _bar(f"{one['load']}: messages between places at most a tenth", part, part <= MESSAGES_PART),
        ]
    above = sum(row["above a limit"] for row in rows)
    return [*bars, _bar("nobody is above its limit in any period", above, above == 0)]


def _cut(servers: int, tenants: int) -> Row:
    """Everybody asks for twice its limit, and one place hears nothing of the others for five periods."""
    world = _make(True, servers, tenants, GREEDY, 0.0, WARM_PERIODS + CUT_PERIODS + 2)
    begins = (WARM_PERIODS + 0.4) * world.policy.period_ns
    ends = begins + CUT_PERIODS * world.policy.period_ns
    simulation = Simulation("rates-zones", world, SEED, faults=Faults(), keep=1)
    world.watch()

    async def strike() -> None:
        await sleep_until(simulation.loop, int(begins))
        world.cut_place = PLACES[0]
        await sleep_until(simulation.loop, int(ends))
        world.cut_place = None

    world.workloads = lambda: {"cut": strike()}  # type: ignore[method-assign]
    simulation.run()
    limits = sum(terms.limit.count for terms in world.policy.tenants.values() if terms.limit)
    numbers = [number for number in sorted(world.served) if number]
    inside = numbers[WARM_PERIODS + 1 : WARM_PERIODS + CUT_PERIODS]
    served = {place: [world.served_at[place, number] for number in inside] for place in PLACES}
    return {
        "periods cut off": inside,
        "above a limit": _count_above(world),
        "part of all limits served there": round(min(served[PLACES[0]]) / limits, 4),
        "and elsewhere": round(min(sum(each) for each in zip(*served.values(), strict=True)) / limits, 4),
    }


def _judge(cut: Row) -> list[dict[str, Any]]:
    part = cut["part of all limits served there"]
    return [
        _bar("a place cut off: nobody is above its limit", cut["above a limit"], cut["above a limit"] == 0),
        _bar("a place cut off goes on with its part in each period", part, part > 0.1),
    ]


def _bar(bar: str, found: float, met: bool) -> dict[str, Any]:
    return {"bar": bar, "found": found, "met": met}
