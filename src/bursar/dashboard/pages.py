"""The frame around the views: pages by kind, navigation, keys, dark and light."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fastapi import Request
from nicegui import ui
from nicegui.events import KeyEventArguments

from bursar.dashboard.alerts import find_alerts, find_recent
from bursar.dashboard.history import History, Sample
from bursar.dashboard.views.alerts import AlertsView
from bursar.dashboard.views.claims import ClaimView
from bursar.dashboard.views.fleet import FleetView
from bursar.dashboard.views.pools import PoolView
from bursar.dashboard.views.quotas import QuotaView
from bursar.dashboard.views.rates import RateView
from bursar.dashboard.views.shares import ShareView

REFRESH_S = 0.5
TABS = {
    "rates": "rate",
    "shares": "share",
    "pools": "pool",
    "quotas": "quota",
    "claims": "claim",
    "fleet": "",
    "alerts": "",
}
VIEWS: dict[str, Callable[[str], View]] = {}

Action = Callable[[], Awaitable[str]]
"""Something that changes the world; returns what was done."""


class View(Protocol):
    def refresh(self, sample: Sample, history: History) -> None: ...


VIEWS |= {"rate": RateView, "share": ShareView, "quota": QuotaView, "pool": PoolView, "claim": ClaimView}


@dataclass
class Board:
    """What all visitors see. `actions` are offered only to those who come with the token."""

    history: History
    title: str = "bursar"
    token: str | None = None
    actions: Mapping[str, Action] = field(default_factory=dict)

    def may_act(self, token: str) -> bool:
        return self.token is not None and secrets.compare_digest(token.encode(), self.token.encode())


STYLE = Path(__file__).with_name("style.css")


class Page:
    """One visitor's page: its views, refreshed while it is open."""

    def __init__(self, board: Board, tab: str, token: str, dark: str | None) -> None:
        self._board = board
        self._tab = tab
        self._token = token if board.may_act(token) else ""
        self._shown = 0
        self._names: list[str] = []
        self._views: dict[str, View] = {}
        ui.add_css(STYLE)
        self._dark = ui.dark_mode(None if dark is None else dark == "1")
        self._build_header()
        ui.keyboard(on_key=self._press)
        self._body = ui.column().classes("w-full").style("gap: 14px")
        self.refresh()
        ui.timer(REFRESH_S, self.refresh)

    def _build_header(self) -> None:
        with ui.header().classes("header"):
            ui.link(self._board.title, self._link("rates")).classes("brand")
            for number, tab in enumerate(TABS, start=1):
                link = ui.link(tab, self._link(tab)).classes("tab" + (" here" if tab == self._tab else ""))
                link.props(f'title="key {number}"')
                if tab == "alerts":
                    self._badge = ui.badge("0").props('color="red" data-badge="alerts"')
            ui.element("div").classes("spacer")
            for name, action in self._board.actions.items() if self._token else ():
                ui.button(name, on_click=lambda action=action: self._act(action)).props(
                    "dense outline no-caps"
                )
            self._number = ui.label().classes("text-caption figures").props("data-sample")
            button = ui.button(icon="contrast", on_click=self._toggle_dark).props("flat round dense")
            button.props('aria-label="dark or light (key d)" title="dark or light (key d)"')

    def _link(self, tab: str) -> str:
        return f"/{tab}" + (f"?token={self._token}" if self._token else "")

    async def _act(self, action: Action) -> None:
        ui.notify(await action())

    def _toggle_dark(self) -> None:
        self._dark.value = not self._dark.value
        ui.run_javascript(
            f"document.cookie='bursar-dark={int(bool(self._dark.value))};path=/;SameSite=Strict'"
        )

    def _press(self, event: KeyEventArguments) -> None:
        if not event.action.keydown or event.modifiers.ctrl or event.modifiers.alt or event.modifiers.meta:
            return
        if event.key == "d":
            self._toggle_dark()
        elif event.key.number is not None and 1 <= event.key.number <= len(TABS):
            ui.navigate.to(self._link(list(TABS)[event.key.number - 1]))

    def refresh(self) -> None:
        sample = self._board.history.latest
        if sample is None or sample.number == self._shown:
            return
        self._arrange(sample)
        for view in self._views.values():
            view.refresh(sample, self._board.history)
        count = len(find_alerts(sample.reading))
        self._badge.set_text(str(count))
        self._badge.set_visibility(count > 0)
        self._shown = sample.number
        self._number.set_text(f"sample {sample.number}")

    def _arrange(self, sample: Sample) -> None:
        """A view for each resource of the kind; again when one comes or goes."""
        kind = TABS[self._tab]
        names = [name for name, found in sample.reading.kinds.items() if found == kind]
        if self._views and names == self._names:
            return
        self._names = names
        self._body.clear()
        with self._body:
            if not kind:
                self._views = {"": AlertsView() if self._tab == "alerts" else FleetView()}
                return
            self._views = {}
            for name in names:
                with ui.row().classes("items-baseline gap-2"):
                    ui.label(name).classes("resource-title").props('role="heading" aria-level="2"')
                    ui.label(kind).classes("kind")
                self._views[name] = VIEWS[kind](name)
            if not names:
                ui.label(f"The policy has no resource of kind {kind}.")


def add_pages(board: Board) -> None:
    """Register every page. Once a process: pages belong to NiceGUI's only application."""

    def show(tab: str, request: Request) -> None:
        Page(board, tab, request.query_params.get("token", ""), request.cookies.get("bursar-dark"))

    def register(path: str, tab: str) -> None:
        @ui.page(path, title=f"{tab} - {board.title}")
        def page(request: Request) -> None:
            show(tab, request)

    register("/", "rates")
    for tab in TABS:
        register(f"/{tab}", tab)


def describe(sample: Sample) -> dict[str, Any]:
    """A sample for programs: what the pages show, and nothing else."""
    import msgspec

    reading = sample.reading
    return {
        "number": sample.number,
        "at_s": sample.at_s,
        "kinds": dict(reading.kinds),
        "statistics": dict(reading.statistics),
        "silent": dict(reading.silent),
        "nodes": msgspec.to_builtins(reading.nodes),
        "totals": msgspec.to_builtins(reading.totals),
        "alerts": msgspec.to_builtins(find_alerts(reading)),
        "told": msgspec.to_builtins(find_recent(reading)),
    }
