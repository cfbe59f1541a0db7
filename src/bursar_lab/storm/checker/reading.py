"""A run's folder, read into a history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bursar_lab.storm.checker.changes import LATE_NS, Change, Changes
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import Line, read_line
from bursar_lab.storm.checker.policies import Policy, Terms, read_policy, read_terms

FIRST_POLICY = "policy-1.toml"


class HistoryError(Exception):
    """The folder cannot be judged: it says which line of which file, and why."""


def read_folder(folder: Path) -> History:
    """Raises HistoryError."""
    files = sorted((folder / "history").glob("*.jsonl"))
    if not files:
        raise HistoryError(f"{folder}/history has no .jsonl files: give the folder that a storm left")
    lines = [line for file in files for line in read_file(file)]
    return make_history(lines, _read_policies(folder), _read_about(folder))


def make_history(
    lines: list[Line], policies: dict[str, Policy], about: dict[str, Any] | None = None
) -> History:
    """From lines and the texts that they name."""
    return History(lines, Changes(_list_texts(lines, policies), _list_tenants(lines, policies)), about)


def read_file(file: Path) -> Iterator[Line]:
    """The last line may be torn: whoever wrote it was killed in the middle."""
    with file.open("rb") as raw_lines:
        for number, raw in enumerate(raw_lines, start=1):
            try:
                line = read_line(raw)
            except msgspec.MsgspecError as error:
                if not raw.endswith(b"\n"):
                    return
                raise HistoryError(f"{file.name}:{number}: {error}") from error
            line.file, line.line = file.name, number
            yield line


def _read_policies(folder: Path) -> dict[str, Policy]:
    policies = {}
    for file in sorted(folder.glob("policy-*.toml")):
        try:
            policies[file.name] = read_policy(file.read_text())
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a text that bursar refused as well; one that was applied is missed below
    return policies


def _read_about(folder: Path) -> dict[str, Any]:
    file = folder / "storm.json"
    try:
        return dict(json.loads(file.read_text())) if file.exists() else {}
    except ValueError as error:
        raise HistoryError(f"{file}: {error}") from error


def _list_texts(lines: list[Line], policies: dict[str, Policy]) -> list[Change[Policy]]:
    applied = [line for line in lines if line.op in ("apply", "rollback")]
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
    lines: list[Line], policies: dict[str, Policy]
) -> dict[tuple[str, str], list[Change[Terms | None]]]:
    kinds = {
        name: resource.kind for policy in policies.values() for name, resource in policy.resources.items()
    }
    found: dict[tuple[str, str], list[Change[Terms | None]]] = {}
    for line in lines:
        if line.op == "tenant" and line.resource in kinds and line.terms is not msgspec.UNSET:
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
