"""The report's pictures, as SVG: lines and boxes in a frame with two axes."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bursar.simulate.outcome import Outcome
from bursar.simulate.workload import Real

BARS_MAX = 40
LINES_MAX = 6
POINTS_MAX = 5_000
"""A browser is slow with more, and nobody sees them."""

WIDTH, HEIGHT = 900, 340
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 30, 70
ASKED, GOT, RESERVED, MISSED = "#94a3b8", "#3b82f6", "#10b981", "#ef4444"
COLOURS = (GOT, RESERVED, "#f59e0b", "#8b5cf6", "#ec4899", "#06b6d4", ASKED)


@dataclass(slots=True)
class Picture:
    """A frame whose inside goes from 0 to `wide` and from 0 to `high` in the units of the data."""

    title: str
    wide: float
    high: float
    label: str
    parts: list[str] = field(default_factory=list)

    def x(self, value: float) -> float:
        return round(LEFT + value / self.wide * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - min(value / self.high, 1.0) * (HEIGHT - TOP - BOTTOM), 1)

    def bar(self, at: float, value: float, thick: float, colour: str) -> None:
        left, top = self.x(at), self.y(value)
        size = f'width="{self.x(at + thick) - left:.1f}" height="{self.y(0) - top:.1f}"'
        self.parts.append(f'<rect x="{left}" y="{top}" {size} fill="{colour}"/>')

    def line(self, points: Sequence[tuple[float, float]], colour: str, thick: float = 2) -> None:
        places = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)
        self.parts.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="{thick}"/>'
        )

    def dot(self, x: float, y: float, colour: str) -> None:
        self.parts.append(f'<circle cx="{self.x(x)}" cy="{self.y(y)}" r="2" fill="{colour}" opacity=".5"/>')

    def name(self, at: float, text: str) -> None:
        """Below the frame, aslant: names are longer than the space between two."""
        x, y = self.x(at), HEIGHT - BOTTOM + 16
        turned = f' transform="rotate(-30 {x} {y})" text-anchor="end"'
        self.parts.append(f'<text x="{x}" y="{y}"{turned}>{html.escape(text)}</text>')

    def note(self, entries: Sequence[tuple[str, str]]) -> None:
        """Which colour is what, above the frame."""
        x = LEFT
        for text, colour in entries:
            self.parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{colour}"/>')
            self.parts.append(f'<text x="{x + 17}" y="18">{html.escape(text)}</text>')
            x += 34 + 7 * len(text)

    def draw(self, say: Callable[[float], str]) -> str:
        """The whole, with a scale at the left in the words of `say`."""
        scale = []
        for value in _steps(self.high):
            y = self.y(value)
            scale.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#8884"/>')
            scale.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{say(value)}</text>')
        title, label = html.escape(self.title), html.escape(self.label)
        below = f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>'
        frame = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{title}"'
        return f"<svg {frame}>{''.join(scale)}{''.join(self.parts)}{below}</svg>"


def _steps(high: float) -> list[float]:
    """Four to ten round numbers from zero up to it."""
    rough = 10.0 ** math.floor(math.log10(high / 4))
    step = next(rough * times for times in (1, 2, 5, 10) if high / (rough * times) <= 10)
    return [step * number for number in range(int(high / step) + 1)]


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def draw_tenants(outcome: Outcome) -> str:
    """Bars where there are few tenants; each a point where there are many."""
    return _draw_bars(outcome) if len(outcome.terms.tenants) <= BARS_MAX else _draw_points(outcome)


def _draw_bars(outcome: Outcome) -> str:
    got, reserved, asked = outcome.served.by_tenant, outcome.terms.reservation, outcome.demand
    highest = max(1, int(max(got.max(), reserved.max(), asked.max())))
    title = "requests asked for, reserved and served, by tenant"
    picture = Picture(title, len(outcome.terms.tenants), 1.05 * highest, "")
    for at, name in enumerate(outcome.terms.tenants):
        picture.bar(at + 0.15, float(asked[at]), 0.33, ASKED)
        picture.bar(at + 0.52, float(got[at]), 0.33, GOT)
        if reserved[at]:
            level = float(reserved[at])
            picture.line([(at + 0.1, level), (at + 0.9, level)], RESERVED, 3)
        picture.name(at + 0.5, name)
    picture.note([("asked", ASKED), ("got", GOT), ("reservation", RESERVED)])
    return picture.draw(_count)


def _draw_points(outcome: Outcome) -> str:
    reserving = np.flatnonzero(outcome.terms.reservation > 0)
    chosen = reserving[:: max(1, -(-reserving.size // POINTS_MAX))]
    part = 100 * outcome.served.by_tenant[chosen] / outcome.due[chosen].clip(1)
    order = np.argsort(-outcome.terms.reservation[chosen], kind="stable")
    high = 1.1 * float(np.percentile(part, 99.5)) if part.size else 110.0
    title = "requests served, of what was due, by tenant"
    label = "tenants with a reservation, the largest first"
    picture = Picture(title, max(1, chosen.size), max(high, 110.0), label)
    for at, value in enumerate(part[order]):
        picture.dot(at + 0.5, float(value), GOT)
    picture.line([(0, 95), (picture.wide, 95)], MISSED, 1)
    return picture.draw(_percent)


def draw_servers(outcome: Outcome) -> str:
    load: Real = 100 * outcome.load
    order = np.argsort(-load)
    few = order.size <= BARS_MAX
    title = "part of each server's capacity that was used"
    label = "" if few else "servers, the busiest first"
    picture = Picture(title, order.size, max(105.0, 1.05 * float(load.max())), label)
    for at, server in enumerate(order):
        picture.bar(at + 0.15, float(load[server]), 0.7, GOT)
        if few:
            picture.name(at + 0.5, outcome.terms.servers[server])
    return picture.draw(_percent)


def draw_intervals(outcome: Outcome) -> str:
    """The largest tenants by name, and the average of the rest: their sum would dwarf the others."""
    served = outcome.served.by_interval
    largest = np.argsort(-served.sum(axis=0))[:LINES_MAX]
    lines = [(outcome.terms.tenants[index], served[:, index]) for index in largest]
    rest = np.delete(served, largest, axis=1)
    if rest.size:
        lines.append((f"each of the other {rest.shape[1]:,}, on average", rest.mean(axis=1)))
    highest = max(1, *(int(values.max()) for _, values in lines))
    period_s = outcome.terms.period_s
    picture = Picture("requests served in each interval", period_s, 1.05 * highest, "time (s)")
    for (_, values), colour in zip(lines, COLOURS, strict=False):
        at = (np.arange(values.size) + 0.5) * period_s / values.size
        picture.line([(float(x), float(y)) for x, y in zip(at, values, strict=True)], colour)
    for moment in _steps(period_s):
        picture.name(moment, f"{moment:g}")
    picture.note([(name, colour) for (name, _), colour in zip(lines, COLOURS, strict=False)])
    return picture.draw(_count)
