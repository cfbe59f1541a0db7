"""`bursar experiment --all`: the experiments of the five papers, one after the other.

Each runs in a process of its own and writes its numbers and figures; what is done is noted in `papers.json`
beside them, so a run that was broken off goes on where it was. docs/results/papers.md has a line for each
figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

NOTES = "papers.json"
QUICK_PART = 0.1
"""Of the time that the whole takes, about what its small form does."""

START_S = 15.0
"""Of each, about: imports, and what is compiled."""

PAPERS: Mapping[str, tuple[str, float]] = {
    "rates-1": ("pShift 3", 0.5),
    "rates-2": ("pShift 4", 8),
    "rates-parallel": ("pShift 5", 1.5),
    "rates-approximation": ("pShift 6", 1.5),
    "rates-bqueue": ("pShift 7", 0.5),
    "rates-3": ("pShift 8", 3),
    "rates-4": ("pShift 9", 3),
    "rates-4-many": ("pShift IV-E, 200 buckets", 3),
    "rates-5": ("pShift 10", 4),
    "shares-allocation": ("AdapTBF 3, 4", 2),
    "shares-redistribution": ("AdapTBF 5, 6", 4),
    "shares-recompensation": ("AdapTBF 7, 8", 4),
    "shares-overhead": ("AdapTBF IV-G", 1),
    "shares-frequency": ("AdapTBF 9", 5),
    "pools-1a": ("Haechi 6", 0.5),
    "pools-1b": ("Haechi 7", 0.5),
    "pools-1c": ("Haechi 8", 0.5),
    "pools-2a": ("Haechi 9", 1),
    "pools-2b": ("Haechi 10, 11", 1),
    "pools-2c": ("Haechi 12", 2),
    "pools-3": ("Haechi 13 to 15", 1),
    "pools-4": ("Haechi 16 to 19", 3),
    "pools-live-1": ("Haechi 6, 7, live", 1),
    "pools-live-2a": ("Haechi 9, live", 2),
    "pools-live-2b": ("Haechi 10, 11, live", 2),
    "pools-live-3": ("Haechi 13, 14, live", 2),
    "pools-live-4": ("Haechi 16 to 19, live", 4),
    "quotas-cost": ("quotas 2", 5),
    "quotas-remaining": ("quotas 3", 5),
    "quotas-response": ("quotas, table II", 10),
    "quotas-scale": ("quotas 4, 5", 30),
    "claims-rectangular": ("thesis 5-2 to 5-4", 5),
    "claims-hierarchical": ("thesis 5-6, 5-7", 5),
    "claims-availability": ("thesis 5-8", 14),
    "claims-scalability": ("thesis 5-9, 5-10", 8),
}
"""Experiment -> what it runs again, and minutes, roughly: only for saying how long the rest takes."""

Say = Callable[[str], None]


class Note(msgspec.Struct, frozen=True):
    """`met`: whether all that its command asks of the figures held. `seconds`: how long it took."""

    quick: bool
    met: bool
    seconds: float


def run_all(
    out: Path, quick: bool, say: Say, papers: Mapping[str, tuple[str, float]] = PAPERS
) -> dict[str, Any]:
    """Those that were not done before; what came of all."""
    notes = read_notes(out)
    rows = []
    for number, (name, (figures, _)) in enumerate(papers.items(), start=1):
        at = f"{number} of {len(papers)}, {name} ({figures})"
        note = notes.get(name)
        if note is None or note.quick != quick:
            say(f"{at}; all that is left takes about {_guess_left(papers, notes, quick)}")
            note = _run(name, out, quick)
            if note is not None:
                notes[name] = note
                _write_notes(out, notes)
        else:
            say(f"{at}: done before")
        came = "it failed: see its log" if note is None else "met" if note.met else "not all met"
        seconds = None if note is None else round(note.seconds)
        rows.append({"figure": figures, "experiment": name, "what it asks": came, "seconds": seconds})
    return {"table": rows, "ok": all(row["what it asks"] == "met" for row in rows)}


def read_notes(out: Path) -> dict[str, Note]:
    try:
        return msgspec.json.decode((out / NOTES).read_bytes(), type=dict[str, Note])
    except FileNotFoundError:
        return {}


def _write_notes(out: Path, notes: dict[str, Note]) -> None:
    temporary = out / f"{NOTES}.new"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(notes)))
    temporary.replace(out / NOTES)


def _run(name: str, out: Path, quick: bool) -> Note | None:
    """None: it ended without its numbers, and is to be run again."""
    written = out / f"{name}.json"
    written.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bursar", "experiment", name, "--out", str(out)]
    began = time.monotonic()
    with (out / f"{name}.log").open("w") as log:
        subprocess.run([*command, "--quick"] if quick else command, stdout=log, stderr=log)
    if not written.exists():
        return None
    met = json.loads(written.read_text()).get("ok") is not False
    return Note(quick, met, time.monotonic() - began)


def _guess_left(papers: Mapping[str, tuple[str, float]], notes: Mapping[str, Note], quick: bool) -> str:
    """By what those that are done took of what was thought."""
    part = QUICK_PART if quick else 1.0
    thought = {name: START_S + 60 * part * minutes for name, (_, minutes) in papers.items()}
    done = {name for name in papers if name in notes and notes[name].quick == quick}
    ratio = sum(notes[name].seconds for name in done) / sum(thought[name] for name in done) if done else 1.0
    seconds = ratio * sum(each for name, each in thought.items() if name not in done)
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
