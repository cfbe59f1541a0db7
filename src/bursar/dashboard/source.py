"""Where the figures come from: the statistics of one or several nodes, as plain figures, merged.

A rate's servers may be on several nodes, each of which knows its own. Merging adds up what is
counted, joins what is named, and takes what only the leader knows from the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bursar.errors import BursarError
from bursar.resource.door import Resource
from bursar.resource.statistics import Tally
from bursar.runtime.figures import Figures, flatten
from bursar.runtime.slices import run_in_slices

if TYPE_CHECKING:
    from bursar.runtime.client import Bursar

COUNTED = frozenset(
    {*Tally.__struct_fields__, "waiting", "ahead", "dispatched", "charged", "charged_alone", "sum_s"}
)
"""What every node counts for itself; other figures are the same wherever they are known."""

LEADERS = frozenset({"shortfall", "epoch", "period"})
"""What only the leader knows for certain."""


@dataclass(frozen=True)
class Reading:
    """All resources at one moment: `kinds` and figures (`statistics`) by name; `silent` nodes with why."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, Figures] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)


class Node(Protocol):
    """A node in this process."""

    @property
    def resources(self) -> Mapping[str, Resource]: ...


class Source(Protocol):
    async def read(self) -> Reading: ...

    async def close(self) -> None: ...


class NodesSource:
    """Nodes of this process, which may come and go. One that was there and is not is silent."""

    def __init__(self, nodes: Callable[[], Mapping[str, Node]]) -> None:
        self._nodes = nodes
        self._seen: set[str] = set()

    async def read(self) -> Reading:
        nodes = dict(self._nodes())
        self._seen |= set(nodes)
        silent = dict.fromkeys(sorted(self._seen - set(nodes)), "the node is down")
        found = [
            (name, resource.kind, await _read(resource))
            for node in nodes.values()
            for name, resource in list(node.resources.items())
        ]
        return merge(found, silent)

    async def close(self) -> None:
        """The nodes are not this source's to close."""


class DaemonsSource:
    """Daemons, by address. One that does not answer is silent, and asked again."""

    def __init__(self, daemons: Mapping[str, Bursar]) -> None:
        self._daemons = daemons

    async def read(self) -> Reading:
        answers = await asyncio.gather(*(self._ask(url, b) for url, b in self._daemons.items()))
        silent = {url: why for url, _, why in answers if why}
        return merge([row for _, rows, _ in answers for row in rows], silent)

    async def _ask(self, url: str, b: Bursar) -> tuple[str, list[tuple[str, str, Figures]], str]:
        try:
            rows = [(name, b.resource(name).kind, await _read(b.resource(name))) for name in b.resources]
        except BursarError as error:
            return url, [], str(error)
        return url, rows, ""

    async def close(self) -> None:
        for b in self._daemons.values():
            await b.close()


async def _read(resource: Resource) -> Figures:
    """In slices: in the demo, and wherever else nodes are in this process, it grants meanwhile."""
    return await run_in_slices(flatten(await resource.statistics()))


def merge(found: Sequence[tuple[str, str, Figures]], silent: Mapping[str, str]) -> Reading:
    """One set of figures for each resource. Every (name, kind, figures) is one node's."""
    kinds: dict[str, str] = {}
    parts: dict[str, list[Figures]] = {}
    for name, kind, figures in found:
        kinds.setdefault(name, kind)
        if kinds[name] == kind:
            parts.setdefault(name, []).append(figures)
    # A node that leads comes last, so that what only it knows stands.
    merged = {name: merge_all(sorted(rows, key=_is_leading)) for name, rows in parts.items()}
    return Reading(kinds, merged, silent)


def _is_leading(figures: Figures) -> bool:
    # For a quota the root knows the whole.
    return figures.get("leading") is True or figures.get("parent") == ""


def merge_all(rows: Sequence[Figures]) -> Figures:
    merged: Figures = dict(rows[0])
    for row in rows[1:]:
        merged = _merge_two(merged, row)
    return merged


def _merge_two(one: Mapping[str, Any], other: Mapping[str, Any]) -> Figures:
    merged = dict(one)
    for key, value in other.items():
        merged[key] = _merge_values(key, merged[key], value) if key in merged else value
    return merged


def _merge_values(key: str, before: Any, value: Any) -> Any:
    match before, value:
        case Mapping(), Mapping():
            return _merge_two(before, value)
        case list(), list() if key == "alerts":
            return sorted([*before, *value], key=lambda alert: alert["at_s"])
        case list(), list() if key == "counts":
            return [one + other for one, other in zip(before, value, strict=True)]
        case bool(), bool():
            return before and value if key == "ready" else before or value
        case int() | float(), int() | float():
            return before + value if key in COUNTED else value if key in LEADERS else before
    return before if value is None else value
