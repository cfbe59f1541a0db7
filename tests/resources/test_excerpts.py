"""Statistics of very many tenants, of which few are asked for."""

from __future__ import annotations

import msgspec
import pytest

from bursar.policy import build
from bursar.resource.excerpts import Wanted, excerpt
from bursar.resource.statistics import Statistics, Tally, Waited
from bursar.runtime.client import Bursar

USED = {"large": 90, "small": 1, "Middle": 30, "idle": 0}


def take(most: int, *find: str) -> Statistics:
    whole = Statistics(
        resource="x",
        kind="rate",
        shadow=False,
        without_bursar="keep",
        ready=True,
        waiting=0,
        ahead=0,
        tenants={name: Tally(granted=used) for name, used in USED.items()},
        waited=Waited(),
        part=None,
    )
    counts = {name: (used, 1) for name, used in USED.items() if used} | {"gone": (99, 0)}
    return excerpt(whole, counts, Wanted(most, find))


def test_rows_are_those_of_the_busiest_and_of_whom_one_looks_for() -> None:
    assert list(take(2).tenants) == ["large", "Middle"]
    assert set(take(1, "IDL", "mid").tenants) == {"large", "idle", "Middle"}
    assert take(1, "nobody").tenants.keys() == {"large"}
    assert take(9).tenants.keys() == USED.keys(), "those that used nothing, where there is room"


def test_what_all_tenants_have_together_is_still_said() -> None:
    totals = take(1).totals
    assert totals is not None
    assert (totals.tenants, totals.granted, totals.refused) == (4, 121, 3)


RESOURCES = {
    "cache": {"kind": "rate", "servers": {"a": "5k/s"}, "tenant": {"acme": {"limit": "1k/s"}, "other": {}}},
    "llm": {"kind": "quota", "window": "month", "tenant": {"acme": {"limit": 9}, "other": {"limit": 9}}},
    "disk": {"kind": "share", "capacity": "500/s", "tenant": {"acme": {}, "other": {}}},
    "records": {"kind": "pool", "capacity": "5k/s", "tenant": {"acme": {}, "other": {}}},
    "things": {"kind": "claim"},
}


@pytest.mark.parametrize("name", RESOURCES)
async def test_every_kinds_tables_of_tenants_are_short_and_the_rest_is_whole(name: str, tmp_path) -> None:
    daemon = {"state": str(tmp_path), "http": "off"}
    policy = build({"daemon": daemon, "resource": {name: RESOURCES[name]}})
    async with Bursar(policy) as b:
        for tenant in ("acme", "acme", "other") if name != "things" else ():
            await (await b.resource(name).acquire(tenant, wait=5)).release()
        whole = msgspec.to_builtins(await b.statistics(name))
        short = msgspec.to_builtins(await b.statistics(name, most=1))
    assert set(find_tables(short)) == set(find_tables(whole))
    for where, tenants in find_tables(short).items():
        assert tenants == find_tables(whole)[where] & {"acme"}, where
    assert short["part"].keys() == whole["part"].keys()
    if name != "things":
        assert short["totals"] == {"tenants": 2, "granted": 3, "refused": 0}


def find_tables(figures: object, path: str = "") -> dict[str, set[str]]:
    """The keys of every table of tenants or accounts, by where it is."""
    found: dict[str, set[str]] = {}
    for key, value in figures.items() if isinstance(figures, dict) else ():
        where = f"{path}.{key}"
        if key in ("tenants", "whole"):
            found[where] = {name.partition("@")[0] for name in value}
        elif isinstance(value, dict) and key != "totals":
            found |= find_tables(value, where)
    return found
