"""A pool: the estimate of the capacity, what was issued and used, what each client took."""

from __future__ import annotations

from nicegui import ui

from bursar.dashboard import charts
from bursar.dashboard.history import History, Sample
from bursar.dashboard.views.parts import Chart, Facts, TenantTable, choose_shown

COLUMNS = {
    "tenant": "tenant",
    "reservation": "reservation",
    "gets": "gets a second",
    "spent": "spent",
    "reserve": "reserved left",
    "hand": "from the pool",
    "given_up": "given up",
    "denied": "denied",
    "granted": "granted",
    "refused": "refused",
    "overreserving": "over-reserving",
}
TOTALS = {"capacity": "capacity", "issued": "issued so far", "used": "used in the period before"}
THROUGH = ("granted",)


class PoolView:
    def __init__(self, name: str) -> None:
        self._name = name
        self._facts = Facts()
        with ui.element("div").classes("two-columns"):
            self._capacity = Chart(f"{name}/capacity", "Capacity as estimated, tokens of a period")
            self._lines = Chart(f"{name}/lines", "What each tenant gets, over time")
        self._tenants = TenantTable(f"{name}/tenants", "Tenants (tokens of this period)", COLUMNS)

    def refresh(self, sample: Sample, history: History) -> None:
        statistics = sample.reading.statistics[self._name]
        names = {"leading": "leading", "period": "period", **TOTALS, "shadow": "shadow"}
        self._facts.show({name: statistics.get(key) for key, name in names.items()})
        totals = {TOTALS[key]: points for key, points in history.totals(self._name, tuple(TOTALS)).items()}
        self._capacity.show(charts.draw_lines(totals, "a period"), "" if totals else "nothing seen yet")
        tenants = statistics["tenants"]
        gets = history.latest_rates(self._name, THROUGH)
        lines = history.rates(self._name, THROUGH, choose_shown(tenants, gets))
        self._lines.show(charts.draw_lines(lines, "a second"), "" if lines else "not two samples yet")
        over = statistics.get("overreserving") or ()
        self._tenants.show(
            history,
            statistics,
            gets,
            lambda name: {
                "tenant": name,
                "gets": gets.get(name),
                "overreserving": name in over,
                **tenants[name],
            },
        )
