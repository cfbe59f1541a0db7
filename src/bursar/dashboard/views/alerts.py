"""What someone should look at."""

from __future__ import annotations

from nicegui import ui

from bursar.dashboard.alerts import Alert, find_alerts
from bursar.dashboard.history import History, Sample

ICONS = {"error": "error", "warning": "warning"}


class AlertsView:
    def __init__(self) -> None:
        self._place = ui.column().classes("w-full")
        self._shown: list[Alert] | None = None

    def refresh(self, sample: Sample, history: History) -> None:
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


def _show(alert: Alert) -> None:
    card = ui.card().classes(f"w-full alert-{alert.level}").props(f'data-alert="{alert.level}" role="alert"')
    with card, ui.row().classes("items-center no-wrap"):
        ui.icon(ICONS[alert.level]).classes(f"alert-icon-{alert.level}")
        with ui.column().classes("gap-0"):
            ui.label(f"{alert.resource}: {alert.what}" if alert.resource else alert.what)
            ui.label(alert.remedy).classes("text-caption figures")
