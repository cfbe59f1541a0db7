"""One target in a process of its own, under atheris: `python -m bursar_lab.fuzzing.child TARGET FOLDER ...`.

A fault is written down and fuzzing goes on: each that is raised at another place is one. What ends the
process (a hang, memory without bound, a crash of the interpreter) is for the parent to see, by what libFuzzer
leaves in the folder.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from pathlib import Path

import atheris

FAULTS_MAX = 50


class Faults:
    """In a folder: for each its input, and beside it what was raised."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: set[str] = set()

    def note(self, data: bytes, error: Exception) -> None:
        place = _find_place(error)
        if place in self._places or len(self._places) >= FAULTS_MAX:
            return
        self._places.add(place)
        name = hashlib.sha256(place.encode()).hexdigest()[:12]
        (self._folder / f"fault-{name}").write_bytes(data)
        (self._folder / f"fault-{name}.txt").write_text("".join(traceback.format_exception(error)))


def _find_place(error: Exception) -> str:
    """What was raised, and the last lines of ours on the way there."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{frame.filename}:{frame.lineno}" for frame in frames if "bursar" in frame.filename]
    return f"{type(error).__name__} at {' '.join(ours[-2:])}"


def main(name: str, folder: str, *options: str) -> None:
    with atheris.instrument_imports(include=["bursar"]):
        from bursar_lab.fuzzing.target import load_targets

        (target,) = load_targets([name])
    faults = Faults(Path(folder))

    def try_one(data: bytes) -> None:
        error = target.try_one(data)
        if error is not None:
            faults.note(data, error)

    atheris.Setup([sys.argv[0], *options], try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
