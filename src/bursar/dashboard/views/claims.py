"""Claims: who holds what, who waits, and why."""

from __future__ import annotations

from nicegui import ui

from bursar.dashboard.history import History, Sample
from bursar.dashboard.views.parts import Facts, Table

HOLDERS = {"names": "names", "tenant": "tenant", "id": "claim"}
SHOWN = ("resource", "kind")
"""Said in the heading."""

QUEUE = {"names": "names", "tenant": "tenant", "why": "waits because", "id": "claim"}


class ClaimView:
    def __init__(self, name: str) -> None:
        self._name = name
        self._facts = Facts()
        with ui.card().classes("w-full"):
            ui.label("Who holds what (E: alone, S: shared)").classes("card-title")
            self._holders = Table(f"{name}/holders", HOLDERS, texts=True)
        with ui.card().classes("w-full"):
            ui.label("Who waits, and why").classes("card-title")
            self._queue = Table(f"{name}/queue", QUEUE, texts=True)

    def refresh(self, sample: Sample, history: History) -> None:
        statistics = sample.reading.statistics[self._name]
        facts = {key.replace("_", " "): value for key, value in statistics.items() if key not in SHOWN}
        self._facts.show(
            {key: value for key, value in facts.items() if isinstance(value, int | str) and value != ""}
        )
        for table, key in ((self._holders, "holders"), (self._queue, "queue")):
            table.show([{"id": id, **row} for id, row in statistics.get(key, {}).items()])
