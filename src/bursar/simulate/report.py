"""The report: one HTML file with its pictures inside, for a browser without a network."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from bursar.simulate.outcome import Outcome

BARS_MAX = 40

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }}
th, td {{ padding: .25em .8em; text-align: right; border-bottom: 1px solid #8884; }}
th:first-child, td:first-child {{ text-align: left; }}
img {{ max-width: 100%; background: white; border-radius: 8px; }} .bad {{ color: #d33; font-weight: 600; }}
</style></head><body>
<h1>{title}</h1><p>{lead}</p>
{body}
</body></html>
"""


def write_report(name: str, told: str, outcome: Outcome, more: Outcome | None) -> str:
    parts = [
        "<h2>In short</h2>",
        _table(["", "now", *(["with one more server"] if more else [])], _compare(outcome, more)),
        "<h2>What each tenant got</h2>",
        _picture(_draw_tenants(outcome), "requests asked for, reserved and served, by tenant"),
        "<h2>How busy the servers were</h2>",
        _picture(_draw_servers(outcome), "part of each server's capacity that was used"),
        "<h2>Over the period</h2>",
        _picture(_draw_intervals(outcome), "requests served in each interval"),
        "<h2>The tenants that got the least of what was due</h2>",
        _table(["tenant", "reservation", "limit", "asked", "got", ""], _list_worst(outcome)),
        "<p>Tokens of one period. A reservation counts as met from 95 % on, as far as it was asked for. "
        "Served with the allocation and the scheduler of the live servers; pacing, messages and their "
        "delays are left out.</p>",
    ]
    title = f"bursar simulate: {html.escape(name)}"
    return PAGE.format(title=title, lead=html.escape(told), body="\n".join(parts))


def tell(outcome: Outcome, more: Outcome | None) -> list[str]:
    """The same in a few sentences, for the terminal."""
    now = outcome.summarize()
    said = [
        f"{_count(now['tenants'], 'tenant')} asked {_count(now['servers'], 'server')} for "
        f"{now['requests_asked']:,} requests in {now['period_s']:g} s; "
        f"{now['requests_served']:,} were served.",
        f"Of {_count(now['tenants_with_reservation'], 'reservation')} "
        f"{now['tenants_that_missed_it']:,} missed; "
        f"{_count(now['tenants_throttled'], 'tenant')} held back by a limit.",
        f"The busiest server, {now['busiest_server']}, was used to {now['busiest_load']:.0%}, "
        f"the idlest to {now['idlest_load']:.0%}.",
    ]
    if more is not None:
        then = more.summarize()
        said.append(
            f"With one more server: {then['requests_served']:,} served, {then['tenants_that_missed_it']:,} "
            f"reservations missed, the busiest at {then['busiest_load']:.0%}."
        )
    return said


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


ROWS = {
    "requests asked for": "requests_asked",
    "requests served": "requests_served",
    "tenants with a reservation": "tenants_with_reservation",
    "of them, missed it": "tenants_that_missed_it",
    "tenants held back by their limit": "tenants_throttled",
    "load of the busiest server": "busiest_load",
    "load of the idlest server": "idlest_load",
}


def _compare(outcome: Outcome, more: Outcome | None) -> list[list[str]]:
    found = [outcome.summarize(), *([more.summarize()] if more else [])]
    return [[label, *(_write(row[key]) for row in found)] for label, key in ROWS.items()]


def _list_worst(outcome: Outcome) -> list[list[str]]:
    return [
        [
            html.escape(str(row["tenant"])),
            *(_write(row[key]) for key in ("reservation", "limit", "asked", "got")),
            "" if row["met"] else '<span class="bad">missed</span>',
        ]
        for row in outcome.list_worst()
    ]


def _write(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if isinstance(value, float) else f"{value:,}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _picture(figure: Any, alt: str) -> str:
    file = io.BytesIO()
    figure.tight_layout()
    figure.savefig(file, format="png", dpi=100)
    plt.close(figure)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'


def _draw_tenants(outcome: Outcome) -> Any:
    """Bars where there are few tenants; each a point where there are many."""
    figure, axes = plt.subplots(figsize=(9, 4))
    got, due = outcome.served.by_tenant, outcome.terms.reservation
    if got.size <= BARS_MAX:
        at = np.arange(got.size)
        axes.bar(at - 0.2, outcome.demand, width=0.4, label="asked", color="#cbd5e1")
        axes.bar(at + 0.2, got, width=0.4, label="got", color="#3b82f6")
        axes.plot(at, due, "_", markersize=18, markeredgewidth=3, color="#10b981", label="reservation")
        axes.set_xticks(at, outcome.terms.tenants, rotation=30, ha="right")
        axes.set_ylabel("requests")
        axes.legend()
        return figure
    reserving = due > 0
    part = 100 * got[reserving] / outcome.due[reserving].clip(1)
    axes.plot(due[reserving], part, ".", markersize=3, alpha=0.5)
    axes.axhline(95, color="#ef4444", linewidth=1)
    axes.set(xscale="log", xlabel="reservation (requests a period)", ylabel="got, of what was due (%)")
    axes.set_ylim(bottom=0, top=float(np.percentile(part, 99.5)) * 1.1 if part.size else 110)
    return figure


def _draw_servers(outcome: Outcome) -> Any:
    figure, axes = plt.subplots(figsize=(9, 3))
    order = np.argsort(-outcome.load)
    axes.bar(np.arange(order.size), 100 * outcome.load[order], color="#3b82f6")
    if order.size <= BARS_MAX:
        axes.set_xticks(np.arange(order.size), [outcome.terms.servers[index] for index in order])
    else:
        axes.set_xlabel("servers, the busiest first")
    axes.set_ylabel("used (%)")
    axes.set_ylim(0, 105)
    return figure


def _draw_intervals(outcome: Outcome) -> Any:
    """The six largest tenants by name, the rest together."""
    figure, axes = plt.subplots(figsize=(9, 3.5))
    served = outcome.served.by_interval
    largest = np.argsort(-served.sum(axis=0))[:6]
    lines: Mapping[str, Any] = {outcome.terms.tenants[index]: served[:, index] for index in largest}
    rest = served.sum(axis=1) - served[:, largest].sum(axis=1)
    if served.shape[1] > largest.size:
        lines = {**lines, "the rest": rest}
    at = (np.arange(served.shape[0]) + 0.5) * outcome.terms.period_s / served.shape[0]
    for name, values in lines.items():
        axes.plot(at, values, marker="o", markersize=3, label=name)
    axes.set(xlabel="time (s)", ylabel="requests")
    if (served > 0).any():
        axes.set_yscale("symlog")
    axes.legend(fontsize=8)
    return figure
