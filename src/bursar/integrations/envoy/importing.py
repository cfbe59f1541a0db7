"""The YAML of envoyproxy/ratelimit, as a policy: `bursar envoy import ratelimit.yaml`.

Each rule with a limit becomes a descriptor and a tenant; each unit of time a resource, whose period is that
unit. A rule for a key without a value holds for each of its values by itself: a template. What such a rule
counts it counts in fixed windows, and bursar paces it within them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar.decoding import DECODE_ERRORS
from bursar.errors import UsageError

ANY = "*"
UNITS = {"second": ("1s", "s"), "minute": ("1min", "min"), "hour": ("1h", "h"), "day": ("1d", "d")}
UNTOLD = "bursar"
PARTS = {"key", "value", "rate_limit", "descriptors", "shadow_mode", "detailed_metric", "share_threshold"}
LIMIT_PARTS = {"unit", "requests_per_unit", "unlimited", "name"}


@dataclass(frozen=True)
class Imported:
    """A rule: its entries, as the policy matches them, and its limit; None: unlimited. shared: values
    that begin alike have one counter."""

    domain: str
    match: tuple[str, ...]
    unit: str
    limit: int | None
    shadow: bool
    shared: bool


def import_file(file: Path, server: str = UNTOLD) -> str:
    """Raises UsageError for what cannot be read, or cannot be said in a policy."""
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise UsageError("reading YAML needs the package pyyaml: pip install pyyaml") from error
    try:
        documents = [found for found in yaml.safe_load_all(file.read_text()) if found is not None]
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except (*DECODE_ERRORS, yaml.YAMLError) as error:  # also for a date that there is not
        raise UsageError(f"{file} cannot be read: {error}") from error
    rules = [rule for document in documents for rule in read_document(document, str(file))]
    if not rules:
        raise UsageError(f"{file} has no rule with a rate_limit")
    return write_policy(rules, server)


def read_document(document: Any, source: str) -> Iterator[Imported]:
    if not isinstance(document, dict) or not isinstance(document.get("domain"), str):
        raise UsageError(f'{source} has no "domain": it is not a configuration of envoyproxy/ratelimit')
    yield from _read_rules(document.get("descriptors"), document["domain"], (), source)


def _read_rules(rules: Any, domain: str, above: tuple[str, ...], source: str) -> Iterator[Imported]:
    where = f"{source}, {domain}: {', '.join(above) or 'a descriptor'}"
    if rules is not None and not isinstance(rules, list):
        raise UsageError(f"{where}: descriptors are a list, not {rules!r:.40}")
    for rule in rules or ():
        if not isinstance(rule, dict) or not isinstance(rule.get("key"), str):
            raise UsageError(f'{where}: a descriptor without a "key"')
        unknown = next((part for part in rule if part not in PARTS), None)
        if unknown is not None:
            raise UsageError(f'{where}: bursar does not know "{unknown}" of {rule["key"]}; remove it')
        value = rule.get("value")
        match = (*above, f"{rule['key']}={ANY if value in (None, '') else value}")
        if rule.get("rate_limit") is not None:
            yield _read_limit(rule, domain, match, source)
        yield from _read_rules(rule.get("descriptors"), domain, match, source)


def _read_limit(rule: Any, domain: str, match: tuple[str, ...], source: str) -> Imported:
    where, limit = f"{source}, {domain}: {', '.join(match)}", rule["rate_limit"]
    if not isinstance(limit, dict):
        raise UsageError(
            f"{where}: a rate_limit is a table with unit and requests_per_unit, not {limit!r:.40}"
        )
    unknown = next((part for part in limit if part not in LIMIT_PARTS), None)
    if unknown is not None:
        raise UsageError(f'{where}: bursar does not know "{unknown}" of a rate_limit; remove it')
    if limit.get("unlimited"):
        return Imported(domain, match, "second", None, False, False)
    unit, count = str(limit.get("unit", "")).lower(), limit.get("requests_per_unit")
    if unit not in UNITS:
        known = ", ".join(UNITS)
        raise UsageError(f"{where}: the unit is {unit!r}; write one of {known}, or make it a quota by hand")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UsageError(f"{where}: requests_per_unit is {count!r}; write a whole number")
    shadow, shared = bool(rule.get("shadow_mode")), bool(rule.get("share_threshold"))
    return Imported(domain, match, unit, count, shadow, shared)


def write_policy(rules: Sequence[Imported], server: str) -> str:
    groups: dict[tuple[str, bool], list[tuple[int, Imported]]] = {}
    for number, rule in enumerate(rules, start=1):
        groups.setdefault((rule.unit, rule.shadow), []).append((number, rule))
    resources = [_write_resource(unit, shadow, found, server) for (unit, shadow), found in groups.items()]
    descriptors = [_write_descriptor(number, rule) for number, rule in enumerate(rules, start=1)]
    return "\n".join([*resources, "[descriptor]", *descriptors, ""])


def _name_resource(unit: str, shadow: bool) -> str:
    return f"per-{unit}{'-shadow' if shadow else ''}"


def _write_resource(unit: str, shadow: bool, rules: Sequence[tuple[int, Imported]], server: str) -> str:
    period, per = UNITS[unit]
    name = _name_resource(unit, shadow)
    lines = [
        f"[resource.{name}]",
        'kind = "rate"',
        f'period = "{period}"',
        f'servers = {{ {server} = "auto" }}',
    ]
    lines += ["shadow = true"] * shadow
    lines.append(f"[resource.{name}.tenant]")
    for number, rule in rules:
        tenant = f"r{number}/{ANY}" if _list_open(rule) else f"r{number}"
        limit = "" if rule.limit is None else f'limit = "{rule.limit}/{per}"'
        lines.append(f"{json.dumps(tenant)} = {{ {limit} }}")
    return "\n".join([*lines, ""])


def _write_descriptor(number: int, rule: Imported) -> str:
    tenant = "/".join([f"r{number}", *(f"{{{key}}}" for key in _list_open(rule))])
    match = ", ".join(json.dumps(entry, ensure_ascii=False) for entry in rule.match)
    resource = _name_resource(rule.unit, rule.shadow)
    return (
        f"r{number} = {{ match = [{match}], resource = {json.dumps(resource)}, "
        f"tenant = {json.dumps(tenant)}, domain = {json.dumps(rule.domain)} }}"
    )


def _list_open(rule: Imported) -> list[str]:
    """Keys whose values are counted apart."""
    pairs = [entry.partition("=") for entry in rule.match]
    return [key for key, _, value in pairs if value == ANY or (value.endswith(ANY) and not rule.shared)]
