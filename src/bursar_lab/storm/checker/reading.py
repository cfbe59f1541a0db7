"""A run's folder, read into a history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import HistoryError, Line, read_line, share_texts
from bursar_lab.storm.checker.policies import Policy, read_policy


def read_folder(folder: Path) -> History:
    """Raises HistoryError."""
    files = sorted((folder / "history").glob("*.jsonl"))
    if not files:
        raise HistoryError(f"{folder}/history has no .jsonl files: give the folder that a storm left")
    lines = (line for file in files for line in read_file(file))
    return History(lines, _read_policies(folder), _read_about(folder))


def read_file(file: Path) -> Iterator[Line]:
    """The last line may be torn: whoever wrote it was killed in the middle."""
    nodes: dict[tuple[str, ...], list[str]] = {}
    with file.open("rb") as raw_lines:
        for number, raw in enumerate(raw_lines, start=1):
            try:
                line = read_line(raw)
            except (ValueError, RecursionError) as error:  # what msgspec raises
                if not raw.endswith(b"\n"):
                    return
                raise HistoryError(f"{file.name}:{number}: {error}") from error
            line.file, line.line = file.name, number
            yield share_texts(line, nodes)


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
