"""Where the figures come from: the statistics of one or several nodes, as plain figures, merged.

A rate's servers may be on several nodes, each of which knows its own. Merging adds up what is
counted, joins what is named, and takes what only the leader knows from the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from bursar.fleet.layout import NodeRecord
from bursar.resource.door import Resource
from bursar.resource.statistics import Tally
from bursar.runtime.figures import Figures, flatten
from bursar.runtime.slices import run_in_slices

COUNTED = frozenset(
    {*Tally.__struct_fields__, "waiting", "ahead", "dispatched", "charged", "charged_alone", "sum_s"}
)
"""What every node counts for itself; other figures are the same wherever they are known."""

LEADERS = frozenset({"shortfall", "epoch", "period"})
"""What only the leader knows for certain."""


@dataclass(frozen=True)
class Total:
    """What one node counts of one resource, over all tenants."""

    ready: bool
    waiting: int
    granted: int
    refused: int


@dataclass(frozen=True)
class Reading:
    """All resources at one moment: `kinds` and figures (`statistics`) by name; `silent` nodes with why;
    the `nodes` that are up, and the `totals` of each by resource."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, Figures] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    totals: Mapping[str, Mapping[str, Total]] = field(default_factory=dict)


class Node(Protocol):
    """A node in this process."""

    @property
    def resources(self) -> Mapping[str, Resource]: ...

    def nodes(self) -> Mapping[str, NodeRecord]: ...


Rows = Sequence[tuple[str, str, Figures]]
"""Name, kind and figures of each resource of one node."""


class Source(Protocol):
    async def read(self, find: Sequence[str] = ()) -> Reading:
        """`find`: tenants with one of these in their names are wanted, however little they use."""

    async def close(self) -> None: ...


class NodesSource:
    """Nodes of this process, which may come and go. One that was there and is not is silent."""

    def __init__(self, nodes: Callable[[], Mapping[str, Node]]) -> None:
        self._nodes = nodes
        self._seen: set[str] = set()

    async def read(self, find: Sequence[str] = ()) -> Reading:
        nodes = dict(self._nodes())
        self._seen |= set(nodes)
        silent = dict.fromkeys(sorted(self._seen - set(nodes)), "the node is down")
        found = {name: await read_all(node.resources) for name, node in nodes.items()}
        records = {name: node.nodes()[name] for name, node in nodes.items()}
        return put_together(found, records, silent)

    async def close(self) -> None:
        """The nodes are not this source's to close."""


async def read_all(resources: Mapping[str, Resource]) -> Rows:
    """Of one node. In slices: in the demo, and wherever else nodes are in this process, it grants
    meanwhile."""
    return [
        (name, resource.kind, await run_in_slices(flatten(await resource.statistics())))
        for name, resource in list(resources.items())
    ]


def put_together(
    found: Mapping[str, Rows], nodes: Mapping[str, NodeRecord], silent: Mapping[str, str]
) -> Reading:
    """A reading of what each node said."""
    reading = merge([row for rows in found.values() for row in rows], silent)
    totals = {node: {name: add_up(figures) for name, _, figures in rows} for node, rows in found.items()}
    return replace(reading, nodes=nodes, totals=totals)


def add_up(figures: Figures) -> Total:
    def add(field: str) -> int:
        whole = figures.get("totals")  # where there are not rows of all tenants
        return whole[field] if whole else sum(row.get(field, 0) for row in figures["tenants"].values())

    return Total(
        ready=figures["ready"], waiting=figures["waiting"], granted=add("granted"), refused=add("refused")
    )


def merge(found: Rows, silent: Mapping[str, str]) -> Reading:
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
