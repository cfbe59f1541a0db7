"""The keys of a kind as the policy's schema has them, and the value of each in a policy that was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from bursar.policy import build
from bursar.policy.kinds import RECORDS
from bursar.policy.shapes import Shape
from bursar.policy.tables import REQUIRED, Either, Key, Named, Record
from bursar.policy.values import ANYONE, Kind, is_template

TABLES = {"tenant": ("tenants", "templates"), "servers": ("servers", "any_server")}
"""Keys whose table is kept in two parts."""


def list_keys(kind: Kind) -> list[str]:
    """Every key, those of tables below it as "tenant.limit"; templates as if they were a key."""
    found = [key for key in RECORDS[kind].keys if key != "kind"]
    for key in TABLES:
        table = _find_table(kind, key)
        if table is not None:
            found += [f'{key}."{ANYONE}"', *(f"{key}.{below}" for below in table.keys)]
    return found


def _find_table(kind: Kind, key: str) -> Record | None:
    """What stands behind each name of a table."""
    described = RECORDS[kind].keys.get(key)
    if described is None or not isinstance(described.shape, Named):
        return None
    shape: Shape = described.shape.shape
    if isinstance(shape, Either):
        shape = shape.table
    return shape if isinstance(shape, Record) else None


def read_values(policy: Any) -> Iterator[tuple[str, str]]:
    """Each key with its value, written so that two may be compared."""
    for key in RECORDS[policy.kind].keys:
        if key in TABLES:
            yield from _read_table(policy, key)
        elif key != "kind":
            yield from _read(policy, key, key)


def _read_table(policy: Any, key: str) -> Iterator[tuple[str, str]]:
    record = _find_table(policy.kind, key)
    assert record is not None, "every one of TABLES is a table of tables"
    entries: dict[str, Any] = {}
    for part in TABLES[key]:
        found = getattr(policy, part)
        entries |= found if isinstance(found, Mapping) else {} if found is None else {ANYONE: found}
    yield key, " ".join(entries)
    for name, entry in entries.items():
        if is_template(name):
            yield f'{key}."{ANYONE}"', name
        for below in record.keys:
            yield from _read(entry, below, f"{key}.{below}")


def _read(values: Any, key: str, name: str) -> Iterator[tuple[str, str]]:
    """A key is kept under its own name or with its unit; beside it may stand that it adapts. One that is
    kept in no such way was never seen, and is listed as that."""
    fields = [key, f"{key}_ns", f"adaptive_{key}"]
    found = [getattr(values, field) for field in fields if hasattr(values, field)]
    if found:
        yield name, " ".join(map(str, found))


@cache
def read_defaults(kind: Kind) -> Mapping[str, str]:
    """The value of each key that may be left out."""
    table = _fill(RECORDS[kind])
    if "servers" in table:
        table["servers"] = {"a": {}}
    tenant = _find_table(kind, "tenant")
    assert tenant is not None, "every kind has tenants"
    table["tenant"] = {"acme": _fill(tenant)}
    policy = build({"resource": {"plain": table}}).resource("plain")
    needed = set(_list_required(kind))
    return {key: value for key, value in read_values(policy) if key not in needed}


def _fill(record: Record) -> dict[str, Any]:
    return {name: key.example for name, key in record.keys.items() if key.default is REQUIRED}


def _list_required(kind: Kind) -> Iterator[str]:
    """Keys of which any value will do: there is none that users get without writing it."""
    yield from TABLES
    yield from (name for name, key in RECORDS[kind].keys.items() if _is_required(key))
    for table in TABLES:
        record = _find_table(kind, table)
        for name, key in record.keys.items() if record is not None else ():
            if _is_required(key):
                yield f"{table}.{name}"


def _is_required(key: Key) -> bool:
    return key.default is REQUIRED
