"""A share: who lends to whom, who is owed, what each tenant gets."""

from __future__ import annotations

from nicegui import ui

from bursar.dashboard import charts
from bursar.dashboard.history import History, Sample
from bursar.dashboard.views.parts import Chart, Facts, TenantTable, choose_shown

COLUMNS = {
    "tenant": "tenant",
    "weight": "weight",
    "demand": "demand",
    "initial": "its share",
    "lends": "lends",
    "borrows": "borrows",
    "paid": "is paid back",
    "pays": "pays back",
    "tokens": "tokens",
    "record": "is owed",
    "rate": "rate a second",
    "granted": "granted",
    "refused": "refused",
}


class ShareView:
    def __init__(self, name: str) -> None:
        self._name = name
        self._facts = Facts()
        with ui.element("div").classes("two-columns"):
            self._flows = Chart(f"{name}/flows", "Lent and paid back in the last interval")
            self._records = Chart(f"{name}/records", "Who is owed (right), who owes (left)")
            self._lines = Chart(f"{name}/lines", "What each tenant gets, over time")
            self._owed = Chart(f"{name}/owed", "What each is owed, over time")
        self._tenants = TenantTable(f"{name}/tenants", "Tenants (tokens of the last interval)", COLUMNS)

    def refresh(self, sample: Sample, history: History) -> None:
        statistics = sample.reading.statistics[self._name]
        tenants = statistics["tenants"]
        gets = history.latest_rates(self._name, ("granted",))
        drawn = choose_shown(tenants, gets)
        facts = {"capacity a second": statistics["capacity"], "tokens": statistics["tokens"]}
        self._facts.show({**facts, "intervals": statistics["intervals"], "skipped": statistics["skipped"]})
        lent, paid = charts.find_flows({name: tenants[name] for name in drawn})
        nobody = "" if lent or paid else "nobody lends or pays back now"
        self._flows.show(charts.draw_flows(lent, paid), nobody)
        records = {name: tenants[name]["record"] for name in drawn}
        self._records.show(
            charts.draw_records(records), "" if any(records.values()) else "nobody owes anything"
        )
        lines = history.rates(self._name, ("granted",), drawn)
        self._lines.show(charts.draw_lines(lines, "a second"), "" if lines else "not two samples yet")
        self._owed.show(charts.draw_lines(history.levels(self._name, "record", drawn), "tokens"))
        self._tenants.show(
            history,
            statistics,
            gets,
            lambda name: {"tenant": name, **tenants[name], **_changes(tenants[name])},
        )


def _changes(row: dict[str, int]) -> dict[str, int]:
    lent, paid = row["initial"] - row["redistributed"], row["tokens"] - row["redistributed"]
    return {
        "lends": max(0, lent),
        "borrows": max(0, -lent),
        "paid": max(0, paid),
        "pays": max(0, -paid),
    }
