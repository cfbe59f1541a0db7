"""The fleet: its nodes, its resources over all of them, and its tenants, of which any can be found."""

from __future__ import annotations

from nicegui import ui

from bursar.dashboard.history import History, Sample
from bursar.dashboard.summary import (
    NODES,
    RESOURCES,
    ROWS_MAX,
    SORTS,
    TENANTS,
    list_nodes,
    list_parts,
    list_resources,
    list_tenants,
)
from bursar.dashboard.views.parts import Facts, Find, Table

PARTS = {
    "resource": "resource",
    "node": "node",
    "ready": "ready",
    "waiting": "waiting",
    "granted_s": "granted/s",
    "refused_s": "refused/s",
}
TEXTS = ("address", "build", "kind", "node", "problem", "ready", "resource", "state")


class FleetView:
    def __init__(self) -> None:
        self._history: History | None = None
        self._facts = Facts()
        with ui.card().classes("w-full"):
            ui.label("Nodes").classes("card-title")
            self._nodes = Table("fleet/nodes", NODES, texts=TEXTS)
        with ui.card().classes("w-full"):
            ui.label("Resources, over all nodes (tokens a second)").classes("card-title")
            self._resources = Table("fleet/resources", RESOURCES, texts=TEXTS)
        with ui.card().classes("w-full"):
            with ui.row().classes("items-center gap-2"):
                ui.label("Tenants, over all nodes (tokens a second)").classes("card-title")
                self._find = Find("fleet/tenants", self._show_tenants)
                self._sort = ui.select(list(SORTS), value="use", label="by", on_change=self._show_tenants)
                self._sort.props('dense outlined options-dense data-sort="fleet/tenants"').classes("sort")
            self._tenants = Table("fleet/tenants", TENANTS, texts=TEXTS)
            self._more = ui.label().classes("text-caption figures").props('data-more="fleet/tenants"')
        with ui.card().classes("w-full"):
            ui.label("Each resource at each node (tokens a second)").classes("card-title")
            self._parts = Table("fleet/parts", PARTS, texts=TEXTS)

    def refresh(self, sample: Sample, history: History) -> None:
        self._history = history
        nodes = list_nodes(history)
        versions = sorted({row["version"] for row in nodes if row.get("version")})
        self._facts.show(
            {
                "nodes": len(nodes),
                "policy version": ", ".join(map(str, versions)) or "-",
                "not up": sum(row["state"] != "up" for row in nodes),
            }
        )
        self._nodes.show(nodes)
        self._resources.show(list_resources(history))
        self._parts.show(list_parts(history))
        self._show_tenants()

    def _show_tenants(self) -> None:
        if self._history is None:
            return
        rows, found = list_tenants(self._history, self._find.text, str(self._sort.value))
        self._tenants.show(rows)
        first = f"{found:,} rows, of which these are the first" if found > ROWS_MAX else f"{found:,} rows"
        self._more.set_text(first)
