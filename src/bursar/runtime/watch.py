"""Watches the resources of a daemon for what someone should know: reservations that cannot be met,
budgets, a fallback in use, refusals in shadow mode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from bursar.resource.alerts import Alert
from bursar.resource.door import Resource
from bursar.runtime import logs
from bursar.runtime.alerts import Alerts
from bursar.runtime.conditions import find_conditions
from bursar.runtime.figures import Figures, flatten
from bursar.runtime.slices import run_in_slices

WATCH_S = 5.0
FULL_PERCENT = 100

RISING = {
    "would_refuse": (
        "shadow",
        "{tenant} was let through for {tokens} tokens, since this node started, that would be refused",
        "raise its limit, or set shadow = false when you mean it",
    ),
    "fallback": (
        "fallback",
        "{tenant} was granted {tokens} tokens by without_bursar since this node started",
        "see that whoever decides can be reached",
    ),
}
"""Counters of a tenant that should stand still: the event, what is said, and the remedy."""


class Watch:
    """Looks at every resource every few seconds, and tells `alerts` what it finds."""

    def __init__(self, resources: Mapping[str, Resource], alerts: Alerts) -> None:
        self._resources = resources
        self._alerts = alerts
        self._heard: dict[str, Resource] = {}
        self._risen: dict[str, dict[tuple[str, str], int]] = {}

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(WATCH_S)

    async def look(self) -> None:
        for name, resource in list(self._resources.items()):
            try:
                self._listen(name, resource)
                figures = await run_in_slices(flatten(await resource.statistics()))
                conditions = find_conditions(name, resource.kind, figures)
                for alert in (*conditions, *self._find_risen(name, figures)):
                    if alert.name:
                        self._add(alert)
            except Exception as error:  # noqa: BLE001  what cannot be watched is granted all the same
                logs.failure("watch.failed", error, resource=name)
        self._alerts.flush(asyncio.get_running_loop().time())

    def _add(self, alert: Alert) -> None:
        self._alerts.add(alert, asyncio.get_running_loop().time())

    def _find_risen(self, name: str, figures: Figures) -> Iterable[Alert]:
        before, now = self._risen.get(name, {}), {}
        for tenant, row in figures["tenants"].items():
            for field, (event, what, remedy) in RISING.items():
                tokens = row.get(field, 0)
                if not tokens:
                    continue
                now[tenant, field] = tokens
                if tokens != before.get((tenant, field)):
                    yield Alert(
                        name=event,
                        severity="warning",
                        resource=name,
                        tenant=tenant,
                        what=what.format(tenant=tenant, tokens=f"{tokens:,}"),
                        remedy=remedy,
                        fields={"tokens": tokens},
                    )
        self._risen[name] = now

    def _listen(self, name: str, resource: Resource) -> None:
        """Hear of budgets, once for each resource that is opened."""
        if self._heard.get(name) is resource:
            return
        self._heard[name] = resource

        def take(account: str, percent: int) -> None:
            known = resource.policy.tenants if resource.policy is not None else {}
            tenant = account if account in known else account.rpartition("@")[0]
            self._add(_make_budget_alert(name, tenant, account, percent))

        resource.decider.on_warning(take)


def _make_budget_alert(name: str, tenant: str, account: str, percent: int) -> Alert:
    return Alert(
        name="budget",
        severity="error" if percent >= FULL_PERCENT else "warning",
        resource=name,
        tenant=tenant,
        what=f"{account} has used {percent} % of its limit",
        remedy="raise its limit in the policy, or wait for the next window",
        which=f"{percent} %",
        fields={"account": account, "percent": percent},
    )
