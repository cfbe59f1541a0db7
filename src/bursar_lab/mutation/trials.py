"""A copy of the tree, in which mistakes are planted and tests are run. The user's own tree is only read."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bursar.errors import BursarError, UsageError
from bursar_lab.mutation.operators import Mutant

COPIED = ("src", "tests", "docs", "examples", "README.md", "pyproject.toml")
"""What tests read."""

PLUGINS = ("-p", "pytest_asyncio.plugin", "-p", "_hypothesis_pytestplugin", "-p", "no:cacheprovider")
"""Those that the tests need: loading all that are installed takes three times as long."""

PYTEST = ("-m", "pytest", "-x", "-q", "--hypothesis-seed=1", *PLUGINS)
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
LIMIT_S = 30.0
LIMIT_FACTOR = 2
"""A mutant has so many times what its room takes without one, and so many seconds besides: then it hangs."""

FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
TESTS_FAILED = (1, 2)
"""What pytest exits with when a test failed, or a file of tests could not be imported."""


@dataclass(frozen=True, slots=True)
class Room:
    """Source files, and the tests that answer for them; those that take least come first. `without`: an
    expression of pytest's, for tests that are left out."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    without: str = "nothing"


@dataclass(frozen=True, slots=True)
class Trial:
    """How it went with one mutant. `killed_by` is the test that failed first, "time" for one that hung, ""
    for a survivor."""

    room: str
    mutant: Mutant
    killed_by: str
    seconds: float


class Copy:
    """One copy of the tree at `root`, in a folder that is nobody else's."""

    def __init__(self, root: Path, folder: Path) -> None:
        if not (root / "tests").is_dir():
            raise UsageError(f"{root} has no tests: run this from a clone, installed with `pip install -e`")
        self.root = folder
        self._seconds: dict[str, float] = {}
        for path in (root / name for name in COPIED):
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
            elif path.exists():
                shutil.copy2(path, folder)

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def measure(self, room: Room) -> float:
        """How long the room's tests take without a mistake; all of them must pass."""
        if room.name not in self._seconds:
            began = time.monotonic()
            killed_by, said = self._run_tests(room, None)
            if killed_by:
                raise BursarError(f"the tests of {room.name} fail without a mutant:\n{said}")
            self._seconds[room.name] = time.monotonic() - began
        return self._seconds[room.name]

    def try_mutant(self, room: Room, mutant: Mutant) -> Trial:
        limit_s = LIMIT_FACTOR * self.measure(room) + LIMIT_S
        path = self.root / mutant.path
        text, times = path.read_text(), path.stat()
        began = time.monotonic()
        try:
            path.write_text(mutant.plant(text))
            killed_by, _ = self._run_tests(room, limit_s)
        finally:
            path.write_text(text)
            # As old as it was: what was compiled from it is good again.
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return Trial(room.name, mutant, killed_by, time.monotonic() - began)

    def _run_tests(self, room: Room, limit_s: float | None) -> tuple[str, str]:
        """The test that failed, "" if none did, and what was printed."""
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)
        process = subprocess.Popen(
            [sys.executable, *PYTEST, "-k", f"not ({room.without})", *room.tests],
            cwd=self.root,
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(self.root / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return "time", ""
        finally:
            _end(process)
        if process.returncode == 0:
            return "", said
        if process.returncode in TESTS_FAILED:
            return _find_failed(said), said
        return f"exit {process.returncode}", said


def _end(process: subprocess.Popen[str]) -> None:
    """Whatever its tests started goes with it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _find_failed(said: str) -> str:
    found = FAILED_TEST.search(said, said.rfind("short test summary info"))
    return found[1] if found else "pytest"
