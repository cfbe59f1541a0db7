"""What is wrong with a resource now, by its figures. Pure: figures in, alerts out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bursar.resource.alerts import Alert, Severity

WARN_PERCENT = 80

Figures = Mapping[str, Any]


def find_conditions(name: str, kind: str, figures: Figures) -> Iterable[Alert]:
    """All that someone should look at. What has a name is told too, beyond being shown."""
    find = _FINDERS.get(kind)
    if find is not None:
        yield from find(name, figures)
    if figures.get("shadow"):
        remedy = "set shadow = false when you trust it"
        yield Alert(severity="warning", resource=name, what="shadow mode: nobody is refused", remedy=remedy)
    yield from _find_problems(name, figures)


def _find_problems(name: str, figures: Figures) -> Iterable[Alert]:
    problems = list(figures.get("problems") or ())
    if figures.get("problem"):
        problems.append(figures["problem"])
    for problem in problems:
        remedy = f"bursar why {name} TENANT shows more"
        yield Alert(severity="warning", resource=name, what=str(problem), remedy=remedy)


def _find_in_rate(name: str, figures: Figures) -> Iterable[Alert]:
    for tenant, row in figures["tenants"].items():
        if row.get("shortfall"):
            yield Alert(
                name="reservation",
                severity="error",
                resource=name,
                tenant=tenant,
                what=f"the reservation of {tenant} cannot be met now: {row['shortfall']} tokens fit on no "
                "server where it has demand",
                remedy="bursar plan POLICY names the servers and the smallest change",
                fields={"shortfall": row["shortfall"]},
            )
    for server, row in figures.get("servers", {}).items():
        if row.get("alone"):
            yield Alert(
                name="fallback",
                severity="error",
                resource=name,
                what=f"server {server} goes on without a controller, as without_bursar says",
                remedy="start a controller, or look at the store",
                which=server,
                fields={"server": server},
            )
        elif row.get("good") is False:
            text = f"server {server} has no tokens that are good now"
            remedy = "it is starting, or its controller does not answer"
            yield Alert(severity="warning", resource=name, what=text, remedy=remedy)


def _find_in_quota(name: str, figures: Figures) -> Iterable[Alert]:
    """Budgets that run out are told by the root (`watch`), once for all nodes; here they are shown."""
    for account, row in figures.get("whole", {}).items():
        used, limit = row.get("spent", 0) + row.get("held", 0), row.get("limit", 0)
        if limit and used * 100 >= WARN_PERCENT * limit:
            severity: Severity = "error" if row.get("unspent", 0) == 0 else "warning"
            text = f"{account} has used {used:,} of {limit:,} ({used * 100 // limit} %)"
            remedy = "raise its limit in the policy, or wait for the next window"
            yield Alert(severity=severity, resource=name, what=text, remedy=remedy)
        if isinstance(row.get("missing"), int) and row["missing"]:
            text = f"the audit of {account} misses {row['missing']:,}"
            remedy = "this must not happen: keep the ledgers and report it"
            yield Alert(severity="error", resource=name, what=text, remedy=remedy)
        if row.get("fenced"):
            yield Alert(
                name="audit",
                severity="error",
                resource=name,
                tenant=account,
                what=str(row["fenced"]),
                remedy="bursar quota show says which ledger has how much",
                fields={"account": account},
            )


def _find_in_pool(name: str, figures: Figures) -> Iterable[Alert]:
    reserved = sum(row.get("reservation") or 0 for row in figures["tenants"].values())
    capacity = figures.get("capacity") or 0
    if capacity and reserved > capacity:
        yield Alert(
            name="reservation",
            severity="error",
            resource=name,
            what=f"{reserved:,} tokens of a period are reserved, and the data node does {capacity:,}",
            remedy="lower reservations, or find out what slows the data node",
            fields={"reserved": reserved, "capacity": capacity},
        )
    for tenant in figures.get("overreserving") or ():
        text = f"{tenant} reserves more than it uses, period after period"
        remedy = "lower its reservation: others could have it"
        yield Alert(severity="warning", resource=name, tenant=tenant, what=text, remedy=remedy)


_FINDERS: dict[str, Callable[[str, Figures], Iterable[Alert]]] = {
    "rate": _find_in_rate,
    "quota": _find_in_quota,
    "pool": _find_in_pool,
}
