"""What a struct of statistics declares of itself (`bursar.resource.statistics`), read once a class.

Names follow Prometheus: what a field counts in, as a base unit, ends its name ("seconds", also for a
field in nanoseconds), and a counter's name ends in `_total`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from bursar.errors import UsageError

Sort = Literal["counter", "gauge"]

SUFFIXES = {"_ns": 1e-9, "_us": 1e-6, "_ms": 1e-3, "_s": 1}
"""Units that a field's name may end in, in seconds."""


class Column(msgspec.Struct, frozen=True):
    """A number: its field, the end of its metric's name, and what its metric says of it. `adds_up`
    says whether the sum over several tenants means something."""

    field: str
    name: str
    sort: Sort
    what: str
    scale: float | None
    adds_up: bool


class Labelled(msgspec.Struct, frozen=True):
    """A mapping by the values of a label: of structs, or of numbers (`column`)."""

    field: str
    label: str
    column: Column | None


class Histogram(msgspec.Struct, frozen=True):
    field: str
    name: str
    what: str


class Outline(msgspec.Struct, frozen=True):
    """`read` gives the values of all columns of a struct, in their order."""

    columns: tuple[Column, ...]
    labels: tuple[str, ...]
    tables: tuple[Labelled, ...]
    histograms: tuple[Histogram, ...]
    nested: tuple[str, ...]
    read: Callable[[Any], tuple[Any, ...]]


@cache
def outline(struct: type[msgspec.Struct]) -> Outline:
    """Raises UsageError for a field that does not say what it is: then no metric could be made of it."""
    columns: list[Column] = []
    labels: list[str] = []
    tables: list[Labelled] = []
    histograms: list[Histogram] = []
    nested: list[str] = []
    for field, hint in get_type_hints(struct, include_extras=True).items():
        meta = _find_meta(hint)
        declared = _extra(meta)
        match declared.get("metric"):
            case "counter" | "gauge":
                columns.append(_make_column(field, meta))
            case "label":
                labels.append(field)
            case "labelled":
                tables.append(Labelled(field, declared["label"], _find_inner(field, hint)))
            case "histogram":
                histograms.append(Histogram(field, _name(field, declared["unit"])[0], _what(meta, field)))
            case "none":
                continue
            case _ if hint is Any or _is_struct(hint):
                nested.append(field)
            case _:
                raise UsageError(f"{struct.__name__}.{field} must be declared: counter, gauge, label, ...")
    read = _make_reader(columns)
    return Outline(tuple(columns), tuple(labels), tuple(tables), tuple(histograms), tuple(nested), read)


def _find_meta(hint: Any) -> msgspec.Meta | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((found for found in hint.__metadata__ if isinstance(found, msgspec.Meta)), None)


def _extra(meta: msgspec.Meta | None) -> Mapping[str, Any]:
    return (meta.extra or {}) if meta is not None else {}


def _what(meta: msgspec.Meta | None, field: str) -> str:
    return (meta.description if meta is not None else None) or field.replace("_", " ")


def _make_column(field: str, meta: msgspec.Meta | None) -> Column:
    declared = _extra(meta)
    sort: Sort = declared["metric"]
    name, scale = _name(field, declared["unit"])
    if sort == "counter":
        name = f"{name.removesuffix('_total')}_total"
    return Column(field, name, sort, _what(meta, field), scale, adds_up="_seconds" not in f"_{name}")


def _name(field: str, unit: str) -> tuple[str, float | None]:
    """The metric's name without what stands before it, and what its values are multiplied by."""
    scale: float | None = None
    for suffix, factor in SUFFIXES.items():
        if field.endswith(suffix):
            field, unit, scale = field.removesuffix(suffix), "seconds", factor
            break
    if unit and field != unit and not field.endswith(f"_{unit}"):
        field = f"{field}_{unit}"
    return field, None if scale == 1 else scale


def _find_inner(field: str, hint: Any) -> Column | None:
    """For a mapping of numbers, each of which says what it is: Mapping[str, Annotated[int, counter(...)]]."""
    mapping = get_args(hint)[0]
    inner = get_args(mapping)[-1] if get_args(mapping) else None
    meta = _find_meta(inner)
    return _make_column(field, meta) if _extra(meta).get("metric") in ("counter", "gauge") else None


def _is_struct(hint: Any) -> bool:
    options = get_args(hint) or (hint,)
    return any(isinstance(option, type) and issubclass(option, msgspec.Struct) for option in options)


def _make_reader(columns: list[Column]) -> Callable[[Any], tuple[Any, ...]]:
    fields = [column.field for column in columns]
    if any(column.scale is not None for column in columns):
        return lambda row: tuple(scale(getattr(row, column.field), column.scale) for column in columns)
    if len(fields) == 1:
        read_one = attrgetter(fields[0])
        return lambda row: (read_one(row),)
    return attrgetter(*fields) if fields else lambda row: ()


def scale(value: Any, factor: float | None) -> Any:
    return value if factor is None or value is None else value * factor
