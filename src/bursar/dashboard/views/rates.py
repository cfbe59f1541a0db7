"""A rate: what each tenant gets beside what it was promised; tokens and load over servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from bursar.dashboard import charts
from bursar.dashboard.history import History, Sample
from bursar.dashboard.views.parts import Chart, Facts, Table, TenantTable, choose_shown

COLUMNS = {
    "tenant": "tenant",
    "reservation": "reservation",
    "limit": "limit",
    "gets": "gets a second",
    "granted": "granted",
    "refused": "refused",
    "would_refuse": "would refuse",
    "shortfall": "short of",
}
THROUGH = ("granted",)


class RateView:
    def __init__(self, name: str) -> None:
        self._name = name
        self._facts = Facts()
        with ui.element("div").classes("two-columns"):
            self._promises = Chart(f"{name}/promises", "Tokens a second: gets, reservation, limit")
            self._lines = Chart(f"{name}/lines", "What each tenant gets, over time")
            self._tokens = Chart(f"{name}/tokens", "Tokens of this period, by server")
            self._waiting = Chart(f"{name}/waiting", "Requests that wait, by server")
        title = "Tenants (reservation and limit in tokens a period)"
        self._tenants = TenantTable(f"{name}/tenants", title, COLUMNS)
        with ui.card().classes("w-full"):
            ui.label("Servers").classes("card-title")
            columns = {"server": "server", "capacity": "capacity a second", "good": "tokens good"}
            self._servers = Table(f"{name}/servers", {**columns, "in_service": "in service"})

    def refresh(self, sample: Sample, history: History) -> None:
        statistics = sample.reading.statistics[self._name]
        tenants, servers = statistics["tenants"], statistics["servers"]
        gets = history.latest_rates(self._name, THROUGH)
        drawn = choose_shown(tenants, gets)
        lines = history.rates(self._name, THROUGH, drawn)
        self._facts.show({key: statistics[key] for key in ("leading", "epoch", "period", "shadow")})
        self._show_promises({name: tenants[name] for name in drawn}, gets, statistics["period_s"])
        self._tenants.show(
            history, statistics, gets, lambda name: {"tenant": name, "gets": gets.get(name), **tenants[name]}
        )
        self._lines.show(charts.draw_lines(lines, "a second"), "" if lines else "not two samples yet")
        for chart, field in ((self._tokens, "allowance"), (self._waiting, "waiting")):
            cells = charts.read_tokens(servers, field)
            empty = "" if cells else "no server of it is on the nodes that are watched"
            chart.show(charts.draw_heat(cells, drawn, field), empty)
        self._servers.show([{"server": server, **row} for server, row in servers.items()])

    def _show_promises(
        self, tenants: Mapping[str, Mapping[str, Any]], gets: Mapping[str, float], period_s: float
    ) -> None:
        reservation = {name: row["reservation"] / period_s for name, row in tenants.items()}
        limit = {name: row["limit"] and row["limit"] / period_s for name, row in tenants.items()}
        shown = {name: gets.get(name, 0.0) for name in tenants}
        self._promises.show(charts.draw_promises(shown, reservation, limit))
