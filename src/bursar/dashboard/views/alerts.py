"""What someone should look at: what is so now, and what the nodes told lately."""

from __future__ import annotations

import datetime

from nicegui import ui

from bursar.dashboard.alerts import find_alerts, find_recent
from bursar.dashboard.history import History, Sample
from bursar.dashboard.views.parts import Table
from bursar.resource.alerts import Alert

ICONS = {"error": "error", "warning": "warning"}
RECENT = {"at": "told at (UTC)", "alert": "alert", "resource": "resource", "what": "what", "count": "times"}


class AlertsView:
    def __init__(self) -> None:
        self._place = ui.column().classes("w-full")
        self._shown: list[Alert] | None = None
        self._below = ui.column().classes("w-full")
        self._recent: Table | None = None

    def refresh(self, sample: Sample, history: History) -> None:
        told = find_recent(sample.reading)
        if told:
            self._show_recent(told)
        found = find_alerts(sample.reading)
        if found == self._shown:
            return
        self._shown = found
        self._place.clear()
        with self._place:
            if not found:
                ui.label("Nothing to look at.").props("data-alert-none")
            for alert in found:
                _show(alert)

    def _show_recent(self, told: list[Alert]) -> None:
        if self._recent is None:
            with self._below, ui.card().classes("w-full"):
                ui.label("Told lately").classes("card-title")
                self._recent = Table("alerts/recent", RECENT, texts=True)
        self._recent.show([_write(alert) for alert in told])


def _write(alert: Alert) -> dict[str, str | int]:
    at = datetime.datetime.fromtimestamp(alert.at_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    return {
        "at": at,
        "alert": alert.name,
        "resource": alert.resource,
        "what": alert.what,
        "count": alert.count,
    }


def _show(alert: Alert) -> None:
    card = ui.card().classes(f"w-full alert-{alert.severity}")
    with card.props(f'data-alert="{alert.severity}" role="alert"'), ui.row().classes("items-center no-wrap"):
        ui.icon(ICONS[alert.severity]).classes(f"alert-icon-{alert.severity}")
        with ui.column().classes("gap-0"):
            ui.label(f"{alert.resource}: {alert.what}" if alert.resource else alert.what)
            ui.label(alert.remedy).classes("text-caption figures")
