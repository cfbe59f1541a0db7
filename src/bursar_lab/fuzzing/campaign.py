"""The campaign: each target for so long, its progress on the way, and what came of it.

    OUT/TARGET/corpus     inputs, those that were found among them; the next campaign begins with them
    OUT/TARGET/fault-*    what is to be mended, each with what was raised beside it
    OUT/TARGET/log        what libFuzzer said

A process that ends before its time (a hang, memory, a crash) is started again for what is left of it.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bursar.errors import UsageError
from bursar_lab.fuzzing.reached import measure, pick_fewest
from bursar_lab.fuzzing.target import INPUT_MAX_S, Target

MEMORY_MAX_MIB = 1024
HANG_S = int(10 * INPUT_MAX_S)
LEFT_MIN_S = 5.0
RESTARTS_MAX = 20
REACHED_MIN_PERCENT = 95.0

_EXECUTED = re.compile(rb"^#(\d+)\t", re.MULTILINE)
_ENDS = ("crash-", "timeout-", "oom-", "leak-")

Progress = Callable[[str], None]


@dataclass
class Found:
    """What came of one target. `faults`: the files that hold their inputs. Of a process of its own no lines
    are counted."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    reached: float = 100.0
    lines: int = 0
    missed: list[str] = field(default_factory=list)
    new: int = 0
    faults: list[Path] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "inputs": f"{self.inputs:,}",
            "inputs/s": f"{self.inputs / self.seconds:,.0f}" if self.seconds else "",
            "lines": self.lines or "",
            "reached": f"{self.reached:.1f} %" if self.lines else "",
            "new corpus": self.new if self.lines else "",
            "faults": len(self.faults),
        }


def check_atheris() -> None:
    if find_spec("atheris") is None:
        raise UsageError(
            "fuzzing needs atheris: pip install -e '.[fuzz]' (on Linux, see docs/security.md)"
        )


class Fuzzing:
    """One target, in processes one after another until its time is over."""

    def __init__(self, target: Target, out: Path, seconds: float, seed: int) -> None:
        self.target = target
        self.found = Found(target.name, seconds=seconds)
        self._folder = out / target.name
        self._corpus = self._folder / "corpus"
        self._seed = seed
        self._until = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._before = 0

    def start(self) -> None:
        self._corpus.mkdir(parents=True, exist_ok=True)
        for data in self.target.inputs():
            (self._corpus / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
        self._before = len(list(self._corpus.iterdir()))
        (self._folder / "log").write_bytes(b"")
        self._until = time.monotonic() + self.found.seconds
        self._launch()

    def _launch(self) -> None:
        options: dict[str, Any] = {
            "max_total_time": max(1, int(self.left_s)),
            "rss_limit_mb": MEMORY_MAX_MIB,
            "timeout": HANG_S,
            "max_len": self.target.input_max_bytes,
            "seed": self._seed + self._starts,
            "artifact_prefix": f"{self._folder}/",
            "verbosity": 1,
        }
        if self.target.words:
            options["dict"] = self._folder / "words"
            options["dict"].write_text("".join(f'"{_escape(word)}"\n' for word in self.target.words))
        given = [f"-{name}={value}" for name, value in options.items()]
        command = [sys.executable, "-m", "bursar_lab.fuzzing.child", self.target.name, str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*command, str(self._corpus), *given], stdout=log, stderr=log)
        self._starts += 1

    @property
    def left_s(self) -> float:
        return self._until - time.monotonic()

    def go_on(self) -> bool:
        """Whether it still runs; one that ended before its time is started again."""
        assert self._process is not None, "started before"
        if self._process.poll() is None:
            return True
        if self.left_s > LEFT_MIN_S and self._starts < RESTARTS_MAX:
            self._launch()
            return True
        return False

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def end(self) -> Found:
        """Count, once it is over."""
        found = self.found
        found.inputs = _count_inputs((self._folder / "log").read_bytes())
        files = sorted(self._folder.iterdir())
        found.faults = [file for file in files if file.name.startswith("fault-") and not file.suffix]
        found.faults += [file for file in files if file.name.startswith(_ENDS)]
        if self._process is not None and self._process.returncode and not found.faults:
            found.faults = [self._folder / "log"]
        corpus = sorted(self._corpus.iterdir())
        found.new = len(corpus) - self._before
        inputs = [*self.target.inputs(), *(file.read_bytes() for file in corpus)]
        reached = measure(self.target, inputs)
        found.reached, found.lines = reached.percent, len(reached.lines)
        found.missed = [f"{file}:{number}" for file, number in reached.missed()]
        return found


def run(
    targets: list[Target], out: Path, seconds: float, seed: int, at_once: int, tell: Progress
) -> list[Found]:
    """All targets, so many at a time."""
    check_atheris()
    waiting = [Fuzzing(target, out, seconds, seed) for target in targets]
    running: list[Fuzzing] = []
    done: list[Found] = []
    total_s = seconds * -(-len(targets) // at_once)
    until = time.monotonic() + total_s
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(waiting.pop(0))
                running[-1].start()
            time.sleep(0.5)
            left_s = max(0.0, until - time.monotonic())
            names = ", ".join(f"{each.target.name} {max(0.0, each.left_s):.0f} s" for each in running)
            tell(f"{len(done)} of {len(targets)} done, {left_s / 60:.0f} min left: {names}")
            for each in [each for each in running if not each.go_on()]:
                running.remove(each)
                done.append(each.end())
    finally:
        for each in running:
            each.stop()
    return done


def keep(target: Target, out: Path) -> int:
    """Make the kept corpus anew: as few inputs as reach all lines that the old, the writers' and the found
    ones do. How many there are."""
    corpus = sorted((out / target.name / "corpus").glob("*"), key=lambda file: file.stat().st_size)
    found = [*target.inputs(), *(file.read_bytes() for file in corpus)]
    kept = pick_fewest(target, found)
    target.keep(kept)
    return len(kept)


def _count_inputs(log: bytes) -> int:
    """As libFuzzer told them; each process counts from zero."""
    total = last = 0
    for found in _EXECUTED.findall(log):
        number = int(found)
        total += last if number < last else 0
        last = number
    return total + last


def _escape(word: bytes) -> str:
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in word
    )
