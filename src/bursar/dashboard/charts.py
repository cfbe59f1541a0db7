"""Figures in, ECharts options out. Pure, so that what a page draws can be tested without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bursar.apportion import apportion

Options = dict[str, Any]
Lines = Mapping[str, Sequence[tuple[float, float]]]

SHOWN_MAX = 24
"""Tenants in one picture; the table has the rest."""

INK = "#7b8494"
"""For text and axes: readable on white and on black."""

FAINT = "rgba(128,136,150,0.25)"
BLUE, GREEN, RED, AMBER, VIOLET = "#3b82f6", "#10b981", "#ef4444", "#f59e0b", "#8b5cf6"
COLOURS = (BLUE, AMBER, GREEN, VIOLET, "#ec4899", RED, "#06b6d4", "#84cc16", "#a16207", "#64748b", "#f97316")


def _base(**options: Any) -> Options:
    return {
        "animation": False,
        "color": list(COLOURS),
        "textStyle": {"color": INK, "fontFamily": "inherit"},
        "tooltip": {"confine": True, **options.pop("tooltip", {})},
        **options,
    }


def _axis(kind: str, name: str = "", **more: Any) -> Options:
    return {
        "type": kind,
        "name": name,
        "nameTextStyle": {"color": INK},
        "axisLabel": {"color": INK, "hideOverlap": True, **more.pop("axisLabel", {})},
        "axisLine": {"lineStyle": {"color": FAINT}},
        "splitLine": {"lineStyle": {"color": FAINT}},
        **more,
    }


def draw_lines(lines: Lines, unit: str) -> Options:
    """Each tenant over time."""
    names = list(lines)[:SHOWN_MAX]
    series = [
        {"name": name, "type": "line", "showSymbol": False, "data": [list(point) for point in lines[name]]}
        for name in names
    ]
    return _base(
        tooltip={"trigger": "axis"},
        legend={"type": "scroll", "bottom": 0, "icon": "roundRect", "textStyle": {"color": INK}},
        grid={"left": 8, "right": 16, "top": 32, "bottom": 36, "containLabel": True},
        xAxis=_axis("time"),
        yAxis=_axis("value", unit),
        series=series,
    )


def draw_promises(
    gets: Mapping[str, float], reservation: Mapping[str, float], limit: Mapping[str, float | None]
) -> Options:
    """What each tenant gets as a bar, between its reservation and its limit."""
    names = list(gets)[:SHOWN_MAX]
    shown = names[::-1]

    def marks(name: str, values: Mapping[str, float | None], colour: str) -> Options:
        points = [[values[tenant], tenant] for tenant in shown if values.get(tenant)]
        return {
            "name": name,
            "type": "scatter",
            "symbol": "rect",
            "symbolSize": [4, 18],
            "itemStyle": {"color": colour},
            "data": points,
        }

    bars = {
        "name": "gets",
        "type": "bar",
        "barWidth": "45%",
        "data": [gets[tenant] for tenant in shown],
        "itemStyle": {"color": BLUE, "opacity": 0.75},
    }
    return _base(
        tooltip={"trigger": "item"},
        legend={"bottom": 0, "textStyle": {"color": INK}},
        grid={"left": 8, "right": 40, "top": 16, "bottom": 36, "containLabel": True},
        xAxis=_axis("value", ""),
        yAxis=_axis("category", "", data=shown),
        series=[bars, marks("reservation", reservation, GREEN), marks("limit", limit, RED)],
    )


def draw_heat(cells: Mapping[str, Mapping[str, int]], tenants: Sequence[str], name: str) -> Options:
    """Servers by tenants: `cells` is figures by server and tenant."""
    shown, servers = list(tenants)[:SHOWN_MAX], list(cells)
    data = [
        [x, y, cells[server].get(tenant, 0)]
        for x, server in enumerate(servers)
        for y, tenant in enumerate(shown[::-1])
    ]
    most = max((cell[2] for cell in data), default=0)
    heat = {
        "name": name,
        "type": "heatmap",
        "data": data,
        "label": {"show": len(data) <= 120},
        "itemStyle": {"borderWidth": 2, "borderColor": FAINT},
    }
    return _base(
        tooltip={"trigger": "item"},
        grid={"left": 8, "right": 16, "top": 8, "bottom": 8, "containLabel": True},
        xAxis=_axis("category", "", data=servers, splitArea={"show": False}),
        yAxis=_axis("category", "", data=shown[::-1]),
        visualMap={
            "show": False,
            "min": 0,
            "max": max(1, most),
            "inRange": {"color": ["#e8f0fe", "#93b8f8", "#3b82f6", "#1e40af"]},
        },
        series=[heat],
    )


def read_tokens(servers: Mapping[str, Mapping[str, Any]], field: str) -> dict[str, dict[str, int]]:
    """A figure by server and tenant. Where there is no limit, the tokens are those with priority."""
    cells: dict[str, dict[str, int]] = {}
    for server, row in servers.items():
        cells[server] = {
            tenant: figures.get("priority", 0) if figures[field] is None else figures[field]
            for tenant, figures in row.get("tenants", {}).items()
        }
    return cells


Flow = tuple[str, str, int]


def find_flows(tenants: Mapping[str, Mapping[str, int]]) -> tuple[list[Flow], list[Flow]]:
    """(lent, paid back): who gives how much to whom, in this interval. Only sums are decided, so
    each giver's tokens are split over the takers in proportion to what they take."""
    lent = {name: row["initial"] - row["redistributed"] for name, row in tenants.items()}
    paid = {name: row["redistributed"] - row["tokens"] for name, row in tenants.items()}
    return _match(lent), _match(paid)


def _match(change: Mapping[str, int]) -> list[Flow]:
    takers = {name: -amount for name, amount in change.items() if amount < 0}
    total = sum(takers.values())
    flows: list[Flow] = []
    for giver, amount in change.items():
        if amount > 0 and total:
            parts = apportion(min(amount, total), list(takers.values()))
            flows += [(giver, taker, int(part)) for taker, part in zip(takers, parts, strict=True) if part]
    return flows


def draw_flows(lent: Sequence[Flow], paid: Sequence[Flow]) -> Options:
    """Givers left, takers right; what is lent in one colour, what is paid back in another."""
    links = [_link(flow, BLUE, "lends") for flow in lent]
    links += [_link(flow, GREEN, "pays back") for flow in paid]
    names = dict.fromkeys(name for link in links for name in (link["source"], link["target"]))
    sankey = {
        "type": "sankey",
        "data": [{"name": name, "itemStyle": {"color": INK}} for name in names],
        "links": links,
        "label": {"color": INK},
        "lineStyle": {"opacity": 0.55},
        "left": 8,
        "right": 120,
    }
    return _base(tooltip={"trigger": "item"}, series=[sankey] if links else [])


def _link(flow: Flow, colour: str, verb: str) -> Options:
    giver, taker, amount = flow
    return {
        "source": f"{giver} {verb}",
        "target": f"to {taker}",
        "value": amount,
        "lineStyle": {"color": colour},
    }


def draw_records(records: Mapping[str, int]) -> Options:
    """Who is owed (right) and who owes (left). They add up to nothing."""
    shown = list(records)[:SHOWN_MAX][::-1]
    data = [
        {"value": records[name], "itemStyle": {"color": GREEN if records[name] >= 0 else RED}}
        for name in shown
    ]
    return _base(
        tooltip={"trigger": "item"},
        grid={"left": 8, "right": 40, "top": 8, "bottom": 8, "containLabel": True},
        xAxis=_axis("value"),
        yAxis=_axis("category", data=shown, axisLine={"show": False}),
        series=[{"name": "is owed", "type": "bar", "barWidth": "50%", "data": data}],
    )


PARTS = (("spent", RED), ("held", AMBER), ("in_flight", VIOLET), ("unspent", GREEN))


def draw_accounts(whole: Mapping[str, Mapping[str, Any]]) -> Options:
    """Where each account's units are: spent, held, in flight, unspent."""
    shown = list(whole)[:SHOWN_MAX][::-1]
    series = [
        {
            "name": part.replace("_", " "),
            "type": "bar",
            "stack": "units",
            "barWidth": "50%",
            "itemStyle": {"color": colour},
            "data": [whole[account].get(part, 0) for account in shown],
        }
        for part, colour in PARTS
    ]
    return _base(
        tooltip={"trigger": "axis", "axisPointer": {"type": "shadow"}},
        legend={"bottom": 0, "textStyle": {"color": INK}},
        grid={"left": 8, "right": 40, "top": 8, "bottom": 36, "containLabel": True},
        xAxis=_axis("value"),
        yAxis=_axis("category", data=shown),
        series=series,
    )
