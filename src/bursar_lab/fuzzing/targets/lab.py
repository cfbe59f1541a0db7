"""The lab's own: lines of a storm's history."""

from __future__ import annotations

from collections.abc import Iterator

from bursar_lab.fuzzing.target import Target
from bursar_lab.fuzzing.targets.machines import find_folder
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import HistoryError
from bursar_lab.storm.checker.reading import read_file

LINES = b"""{"op":"begin","at":1,"n":1,"of":"acquire","resource":"cache","tenant":"acme","wait_ms":5}
{"op":"acquire","at":1,"end":9,"n":1,"nodes":["a"],"resource":"x","tenant":"x","answer":{"is":"grant"}}
{"op":"settle","at":10,"end":11,"grant":1,"used":1,"answer":{"is":"ok"}}
{"op":"fault","at":3,"fault":"kill","targets":["a"]}
{"op":"heal","at":5,"fault":"kill"}
{"op":"stood","at":3,"end":4}
"""


def read_lines(data: bytes) -> None:
    """A history that can be judged at all is taken in whole."""
    file = find_folder() / "client.jsonl"
    file.write_bytes(data)
    history = History(read_file(file), {})
    assert all(history.is_calm(line.at, line.done_at) in (True, False) for line in history.operations)


def make_lines() -> Iterator[bytes]:
    yield LINES
    yield from (
        LINES.replace(b'"at":1', b'"at":"x"'),
        LINES[:-5],
        b"\xff\n",
        b'{"op":"x","task":' + b"[" * 3000,
    )


WORDS = (
    b'"op":',
    b'"acquire"',
    b'"begin"',
    b'"answer":',
    b'"is":',
    b'"at":',
    b'"end":',
    b'"fault"',
    b'"heal"',
)
TARGETS = (
    Target(
        "lab-histories",
        (
            "bursar_lab.storm.checker.lines:read_line,share_texts",
            "bursar_lab.storm.checker.reading:read_file",
            "bursar_lab.storm.checker.history:History.__init__,History._add,History.is_calm,name_of",
        ),
        read_lines,
        make_lines,
        (HistoryError,),
        WORDS,
    ),
)
