"""Where the figures come from: `statistics()` of one or several nodes, merged.

A rate's servers may be on several nodes, each of which knows its own. Merging adds up what is
counted, joins what is named, and takes what only the leader knows from the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bursar.errors import BursarError
from bursar.resource import Resource

if TYPE_CHECKING:
    from bursar.runtime.client import Bursar

Statistics = dict[str, Any]

COUNTED = frozenset({"granted", "dispatched", "refused", "would_refuse", "unknown", "units"})
"""What every node counts for itself; other figures are the same wherever they are known."""

LEADERS = frozenset({"shortfall", "epoch", "period"})
"""What only the leader knows for certain."""


@dataclass(frozen=True)
class Reading:
    """All resources at one moment: `kinds` and `statistics` by name; `silent` nodes with why."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, Statistics] = field(default_factory=dict)
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
            (name, resource.kind, dict(resource.statistics()))
            for node in nodes.values()
            for name, resource in node.resources.items()
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

    async def _ask(self, url: str, b: Bursar) -> tuple[str, list[tuple[str, str, Statistics]], str]:
        try:
            rows = [(name, b.resource(name).kind, dict(await b.statistics(name))) for name in b.resources]
        except BursarError as error:
            return url, [], str(error)
        return url, rows, ""

    async def close(self) -> None:
        for b in self._daemons.values():
            await b.close()


def merge(found: Sequence[tuple[str, str, Statistics]], silent: Mapping[str, str]) -> Reading:
    """One set of figures for each resource. Every (name, kind, statistics) is one node's."""
    kinds: dict[str, str] = {}
    parts: dict[str, list[Statistics]] = {}
    for name, kind, statistics in found:
        kinds.setdefault(name, kind)
        if kinds[name] == kind:
            parts.setdefault(name, []).append(statistics)
    # A node that leads comes last, so that what only it knows stands.
    merged = {name: merge_all(sorted(rows, key=_is_leading)) for name, rows in parts.items()}
    return Reading(kinds, merged, silent)


def _is_leading(statistics: Statistics) -> bool:
    # For a quota the root knows the whole.
    return statistics.get("leader") is True or statistics.get("parent") == ""


def merge_all(rows: Sequence[Statistics]) -> Statistics:
    merged: Statistics = dict(rows[0])
    for row in rows[1:]:
        merged = _merge_two(merged, row)
    return merged


def _merge_two(one: Mapping[str, Any], other: Mapping[str, Any]) -> Statistics:
    merged = dict(one)
    for key, value in other.items():
        before = merged.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[key] = _merge_two(before, value)
        elif key in COUNTED and before is not None:
            merged[key] = before + value
        elif isinstance(value, bool) and isinstance(before, bool):
            merged[key] = before or value
        elif key not in merged or key in LEADERS or not isinstance(value, int | float):
            merged[key] = value
    return merged
