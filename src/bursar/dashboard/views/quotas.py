"""A quota: how much of each account is used, who holds the rest, when it runs out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from bursar.dashboard import charts
from bursar.dashboard.history import History, Sample
from bursar.dashboard.views.parts import Chart, Facts, Table, TenantTable, choose_shown

WHOLE = {
    "account": "account",
    "limit": "limit",
    "spent": "spent",
    "held": "held",
    "unspent": "unspent",
    "in_flight": "in flight",
    "rate": "used a second",
    "runs_out": "runs out",
    "missing": "audit misses",
}
LEDGERS = {
    "ledger": "account, node",
    "unspent": "unspent",
    "held": "held",
    "spent": "spent",
    "rate": "a second",
}
HERE = {
    "tenant": "tenant",
    "granted": "granted",
    "refused": "refused",
    "unknown": "unknown",
    "granted_requests": "requests granted",
    "refused_requests": "requests refused",
}


class QuotaView:
    def __init__(self, name: str) -> None:
        self._name = name
        self._facts = Facts()
        with ui.element("div").classes("two-columns"):
            self._accounts = Chart(f"{name}/accounts", "Where the units of each account are")
            self._lines = Chart(f"{name}/lines", "Units granted, over time")
        with ui.card().classes("w-full"):
            ui.label("Accounts, over all nodes; an account below another counts against it too").classes(
                "card-title"
            )
            self._whole = Table(f"{name}/whole", WHOLE)
        with ui.element("div").classes("two-columns"):
            with ui.card().classes("w-full"):
                ui.label("Who holds what").classes("card-title")
                self._ledgers = Table(f"{name}/ledgers", LEDGERS)
            self._tenants = TenantTable(f"{name}/tenants", "Answers", HERE)

    def refresh(self, sample: Sample, history: History) -> None:
        statistics = sample.reading.statistics[self._name]
        # Whom an account counts against comes before it, whatever window stands behind the name.
        accounts = sorted(statistics["whole"].items(), key=lambda item: item[0].rpartition("@"))
        whole: Mapping[str, Mapping[str, Any]] = dict(accounts)
        facts = {key: statistics[key] or "-" for key in ("window", "unit", "mode")}
        self._facts.show({**facts, "holds": statistics["holds"]})
        self._accounts.show(charts.draw_accounts(whole), "" if whole else "nobody used an account yet")
        tenants, gets = statistics["tenants"], history.latest_rates(self._name, ("granted",))
        lines = history.rates(self._name, ("granted",), choose_shown(tenants, gets))
        self._lines.show(charts.draw_lines(lines, "a second"), "" if lines else "not two samples yet")
        self._whole.show([_write_account(account, row) for account, row in whole.items()])
        self._ledgers.show(
            [
                {"ledger": f"{account}, {ledger}", **line}
                for account, row in whole.items()
                for ledger, line in row.get("ledgers", {}).items()
            ]
        )
        self._tenants.show(history, statistics, gets, lambda name: {"tenant": name, **tenants[name]})


def _write_account(account: str, row: Mapping[str, Any]) -> dict[str, Any]:
    depth = account.count("/")
    return {**row, "account": "\u2003" * depth + account, "runs_out": _write_end(row)}


def _write_end(row: Mapping[str, Any]) -> str:
    if row.get("unspent") == 0:
        return "it is used up"
    lasts_s = row.get("lasts_s")
    if lasts_s is None:
        return "not at this pace"
    if lasts_s < 120:
        return f"in {lasts_s:.0f} s"
    if lasts_s < 7200:
        return f"in {lasts_s / 60:.0f} min"
    if lasts_s < 48 * 3600:
        return f"in {lasts_s / 3600:.0f} h"
    return f"in {lasts_s / 86400:.0f} days"
