"""What operators changed, in the order in which it could have come into force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bursar_lab.storm.checker.changes import LATE_NS, Change, Changes
from bursar_lab.storm.checker.lines import HistoryError, Line
from bursar_lab.storm.checker.policies import Policy, Terms, read_terms

FIRST_POLICY = "policy-1.toml"


def list_changes(lines: Mapping[str, Sequence[Line]], policies: Mapping[str, Policy]) -> Changes:
    """From what operators did, by operation. Raises HistoryError if a text is missing."""
    applied = [*lines.get("apply", ()), *lines.get("rollback", ())]
    return Changes(_list_texts(applied, policies), _list_tenants(lines.get("tenant", ()), policies))


def _list_texts(applied: Sequence[Line], policies: Mapping[str, Policy]) -> list[Change[Policy]]:
    files = {line.version: line.text for line in applied if line.op == "apply" and line.ok}
    texts = []
    for line in applied:
        name = line.text or files.get(line.to) or ""
        if name in policies:
            texts.append(Change(line.at, _end(line), line.ok is True, policies[name]))
        elif line.ok:
            raise HistoryError(
                f"{line.file}:{line.line}: {name or 'its text'} was applied, and cannot be read"
            )
    if not applied and FIRST_POLICY in policies:
        texts.append(Change(0, 0, True, policies[FIRST_POLICY]))
    return texts


def _list_tenants(
    lines: Sequence[Line], policies: Mapping[str, Policy]
) -> dict[tuple[str, str], list[Change[Terms | None]]]:
    kinds = {
        name: resource.kind for policy in policies.values() for name, resource in policy.resources.items()
    }
    found: dict[tuple[str, str], list[Change[Terms | None]]] = {}
    for line in lines:
        if line.resource in kinds and line.terms is not msgspec.UNSET:
            assert not isinstance(line.terms, msgspec.UnsetType)
            terms = None if line.terms is None else _read_terms(line, kinds[line.resource], line.terms)
            change = Change(line.at, _end(line), line.ok is True, terms)
            found.setdefault((line.resource, line.tenant or ""), []).append(change)
    return found


def _read_terms(line: Line, kind: str, terms: dict[str, Any]) -> Terms:
    try:
        return read_terms(kind, terms)
    except (ValueError, TypeError) as error:
        raise HistoryError(f"{line.file}:{line.line}: {error}") from error


def _end(line: Line) -> int:
    return line.at + LATE_NS if line.end is None else line.end
