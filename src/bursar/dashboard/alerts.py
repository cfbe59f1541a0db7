"""What someone should look at, as sentences. Pure: a reading in, alerts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from bursar.dashboard.history import tenants_of
from bursar.dashboard.source import Reading

Level = Literal["error", "warning"]
WARN_PERCENT = 80


class Alert(msgspec.Struct, frozen=True):
    """`what` says what is so, `remedy` what to do."""

    level: Level
    resource: str
    what: str
    remedy: str


def find_alerts(reading: Reading) -> list[Alert]:
    """Errors first."""
    found = [
        Alert("error", "", f"{node} is silent: {why}", "start it again, or look at its log")
        for node, why in reading.silent.items()
    ]
    for name, statistics in reading.statistics.items():
        find = _FINDERS.get(reading.kinds.get(name, ""))
        found += find(name, statistics) if find else ()
        found += _find_problems(name, statistics)
    return sorted(found, key=lambda alert: alert.level)


def _find_problems(name: str, statistics: Mapping[str, Any]) -> Iterable[Alert]:
    problems = list(statistics.get("problems") or ())
    if statistics.get("problem"):
        problems.append(statistics["problem"])
    for problem in problems:
        yield Alert("warning", name, str(problem), f"bursar why {name} TENANT shows more")


def _find_in_rate(name: str, statistics: Mapping[str, Any]) -> Iterable[Alert]:
    for tenant, row in tenants_of(statistics).items():
        if row.get("shortfall"):
            yield Alert(
                "error",
                name,
                f"the reservation of {tenant} cannot be met now: {row['shortfall']} tokens fit on no server "
                "where it has demand",
                "bursar plan POLICY names the servers and the smallest change",
            )
    for server, row in statistics.get("servers", {}).items():
        if row.get("alone"):
            text = f"server {server} goes on without a controller, as without_bursar says"
            yield Alert("error", name, text, "start a controller, or look at the store")
        elif row.get("good") is False:
            text = f"server {server} has no tokens that are good now"
            yield Alert("warning", name, text, "it is starting, or its controller does not answer")
    if statistics.get("shadow"):
        yield Alert("warning", name, "shadow mode: nobody is refused", "set shadow = false when you trust it")


def _find_in_quota(name: str, statistics: Mapping[str, Any]) -> Iterable[Alert]:
    for account, row in statistics.get("whole", {}).items():
        used, limit = row.get("spent", 0) + row.get("held", 0), row.get("limit", 0)
        if limit and used * 100 >= WARN_PERCENT * limit:
            level: Level = "error" if row.get("unspent", 0) == 0 else "warning"
            text = f"{account} has used {used:,} of {limit:,} ({used * 100 // limit} %)"
            yield Alert(level, name, text, "raise its limit in the policy, or wait for the next window")
        if isinstance(row.get("missing"), int) and row["missing"]:
            text = f"the audit of {account} misses {row['missing']:,}"
            yield Alert("error", name, text, "this must not happen: keep the ledgers and report it")


def _find_in_pool(name: str, statistics: Mapping[str, Any]) -> Iterable[Alert]:
    for tenant in statistics.get("overreserving") or ():
        text = f"{tenant} reserves more than it uses, period after period"
        yield Alert("warning", name, text, "lower its reservation: others could have it")


_FINDERS = {"rate": _find_in_rate, "quota": _find_in_quota, "pool": _find_in_pool}
