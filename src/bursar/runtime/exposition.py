"""Prometheus' text format: families of samples, each with its help and type, escaped as it asks.

Written here and not by a client library, because 10,000 tenants are 150,000 lines: whole columns of
samples take 0.1 s this way, where an object for each takes seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PIECE = 25
"""Entries (each some lines) in one piece of the text: about 100 kB where there are very many."""

_IN_A_LABEL = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_IN_HELP = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def write_label(name: str, value: object) -> str:
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    if "\\" in text or '"' in text or "\n" in text:  # most names need nothing, and there are very many
        text = text.translate(_IN_A_LABEL)
    return f'{name}="{text}"'


def write_labels(labels: Mapping[str, object]) -> str:
    """The labels as they stand between the braces."""
    return ",".join(write_label(name, value) for name, value in labels.items())


def write_number(value: float) -> str:
    """Truth values are 1 and 0."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(value)
    number = float(value)
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


class Exposition:
    """What one scrape answers. Samples of one family come in any order, and are written together."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str, list[str]]] = {}

    def family(self, name: str, sort: str, what: str) -> list[str]:
        """The lines of a family, to add to. `sort` is counter, gauge or histogram."""
        found = self._families.setdefault(name, (sort, what, []))
        assert found[0] == sort, f"{name} is a {found[0]}; a {sort} needs another name"
        return found[2]

    def add(self, name: str, sort: str, what: str, labels: Mapping[str, object], value: float) -> None:
        head = f"{{{write_labels(labels)}}}" if labels else ""
        self.family(name, sort, what).append(f"{name}{head} {write_number(value)}\n")

    def add_column(
        self, name: str, sort: str, what: str, heads: Sequence[str], values: Iterable[float | None]
    ) -> None:
        """A sample for each of `heads`, its labels as they stand in braces; None is left out."""
        lines = [
            f"{name}{head} {value if type(value) is int else write_number(value)}\n"
            for head, value in zip(heads, values, strict=True)
            if value is not None
        ]
        self.family(name, sort, what).append("".join(lines))

    def add_histogram(
        self, name: str, what: str, labels: str, bounds: Sequence[float], counts: Sequence[int], total: float
    ) -> None:
        """`counts` has one more than `bounds`: what lies above the last."""
        head = f"{labels}," if labels else ""
        lines, reached = self.family(name, "histogram", what), 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            reached += count
            lines.append(f'{name}_bucket{{{head}le="{write_number(float(bound))}"}} {reached}\n')
        lines.append(f"{name}_sum{{{labels}}} {write_number(total)}\n")
        lines.append(f"{name}_count{{{labels}}} {reached}\n")

    def write(self) -> Iterator[bytes]:
        """The text, in pieces. A family without samples is left out."""
        for name, (sort, what, lines) in self._families.items():
            if any(lines):
                head = f"# HELP {name} {what.translate(_IN_HELP)}\n# TYPE {name} {sort}\n"
                for start in range(0, len(lines), PIECE):
                    body = "".join(lines[start : start + PIECE])
                    yield f"{'' if start else head}{body}".encode("utf-8", "replace")
