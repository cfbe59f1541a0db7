"""The JSON Schema agrees with the reader."""

from __future__ import annotations

import copy
import datetime
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bursar.errors import PolicyError
from bursar.policy import build
from bursar.policy.schema import make_schema

ROOT = Path(__file__).parents[2]
BROKEN = ROOT / "tests" / "golden" / "policies"
BEYOND_A_SCHEMA = {"limit-below-reservation", "no-device", "peers-without-store"}
"""Broken only in how two values fit together."""

VALUES: list[Any] = [
    "", "auto", "off", "keep", "refuse", "rate", "30k/s", "1GiB/s", "64MiB", "5M", "200ms", "1 s", "0/s", "a",
    "127.0.0.1:0", "memory://", "shm://", "fast", "bytes", -1, 0, 1, 1000, 2**63, 2**64, 0.5, True, False,
    [], ["a"], ["a", "a"], [80], [0], {}, {"safe": "1k/s"}, {"a": "auto"}, {"a": {}}, {"a": {"limit": 5}},
    {"": {}}, {"a/b": {"weight": 1}}, datetime.date(2026, 1, 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = make_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return tomllib.loads((ROOT / "examples" / "policy.toml").read_text())


def walk(table: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in table.items() if isinstance(table, dict) else ():
        yield (*path, key)
        yield from walk(value, (*path, key))


def replace(table: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(table)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def is_accepted(table: dict[str, Any]) -> bool:
    try:
        build(table)
    except PolicyError:
        return False
    return True


def test_the_schema_accepts_the_example(
    validator: jsonschema.Draft202012Validator, example: dict[str, Any]
) -> None:
    validator.validate(example)


def test_the_schema_rejects_what_a_schema_can_reject(validator: jsonschema.Draft202012Validator) -> None:
    seen = set()
    for file in sorted(BROKEN.glob("*.toml")):
        try:
            table = tomllib.loads(file.read_bytes().decode())
        except ValueError:
            continue  # not TOML: no editor asks a schema about it
        seen.add(file.stem)
        assert validator.is_valid(table) == (file.stem in BEYOND_A_SCHEMA), file.name
    assert len(seen) >= 12 and seen >= BEYOND_A_SCHEMA


def test_what_the_reader_accepts_the_schema_accepts(
    validator: jsonschema.Draft202012Validator, example: dict[str, Any]
) -> None:
    """Every value of the example replaced by every odd value, one at a time."""
    accepted = rejected = 0
    for path in walk(example):
        for value in VALUES:
            changed = replace(example, path, value)
            if is_accepted(changed):
                accepted += 1
                validator.validate(changed)
            elif not validator.is_valid(changed):
                rejected += 1
    assert accepted > 50 and rejected > 1000


def test_every_key_says_what_it_is_for(validator: jsonschema.Draft202012Validator) -> None:
    described = 0
    for name, key in find_properties(validator.schema):
        assert key.get("description") or name == "kind", name
        described += "description" in key
    assert described > 50


def find_properties(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from find_properties(inner)
