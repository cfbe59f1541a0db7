"""What each pick costs when nothing fails: figures of the other benchmarks, taken in the same sitting."""

from __future__ import annotations

from typing import Any

from bursar_lab.benchmarks import acquire, claims, quotas, tasks, tokens
from bursar_lab.postgresql_server import PostgresqlServers
from bursar_lab.zookeeper_server import ZookeeperServers

TOGETHER = (1, 128)
CLAIMS_S = 1.5


def measure_all(quick: bool) -> list[dict[str, Any]]:
    return [*_measure_calls(quick), *_measure_budgets(quick), *_measure_owners(), *_measure_tasks(quick)]


def _row(what: str, pick: str, came: str) -> dict[str, Any]:
    return {"for": what, "pick": pick, "fault": "none: cost", "limit": "", "told": "", "what came": came}


def _measure_calls(quick: bool) -> list[dict[str, Any]]:
    rows = [
        _row("calls", f"{found['limiter']} ({found['where']})", f"{found['ns']:,.0f} ns, {found['call']}")
        for found in acquire.run(quick)["table"]
        if found["limiter"] in ("token-bucket", "limits", "aiolimiter", "bursar rate", "limits over Redis")
        and "ns" in found
    ]
    for found in tokens.run(quick)["table"]:
        if found["limiter"] == "throttled-py" and found["threads"] == 1:
            rows.append(_row("calls", f"throttled-py ({found['words']})", f"{found['ns']:,.0f} ns, limit"))
    return rows


def _measure_budgets(quick: bool) -> list[dict[str, Any]]:
    return [
        _row(
            "budget", found["budget"], f"{found['a second']:,} a second, {found['requests at once']} at once"
        )
        for found in quotas.run(quick)["rows"]
        if found["work"] == "granted" and found["requests at once"] in TOGETHER
    ]


def _measure_owners() -> list[dict[str, Any]]:
    with ZookeeperServers(1) as servers:
        found = claims.compare(servers, 1, 1, CLAIMS_S)
    names = {"kazoo Lock": "kazoo Lock/s", "bursar claim (ZooKeeper)": "bursar/s"}
    return [_row("one owner", pick, f"{found[name]:,.0f} a second") for pick, name in names.items()]


def _measure_tasks(quick: bool) -> list[dict[str, Any]]:
    with PostgresqlServers(1) as postgresql, ZookeeperServers(1) as zookeeper:
        return [
            _row(
                "tasks",
                found["system"],
                f"{found['tasks/s']:,.0f} a second; begun after {found['start p50 ms']:.0f} ms (median)",
            )
            for found in tasks.compare(postgresql, zookeeper, 1, quick)
        ]
