"""The report: one HTML file with its pictures inside, for a browser without a network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from bursar.simulate.outcome import Outcome
from bursar.simulate.pictures import draw_intervals, draw_servers, draw_tenants

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }}
th, td {{ padding: .25em .8em; text-align: right; border-bottom: 1px solid #8884; }}
th:first-child, td:first-child {{ text-align: left; }}
svg {{ max-width: 100%; height: auto; font: 12px system-ui, sans-serif; fill: currentColor; }}
.bad {{ color: #d33; font-weight: 600; }}
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
        draw_tenants(outcome),
        "<h2>How busy the servers were</h2>",
        draw_servers(outcome),
        "<h2>Over the period</h2>",
        draw_intervals(outcome),
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
