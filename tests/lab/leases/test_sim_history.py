"""One seed, one history: whatever the hash seed, the dev mode, or what else was imported."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from bursar.sim.scenarios import run_seed

GOLDEN = pathlib.Path(__file__).with_name("seed_7.txt")
COMMAND = "bursar sim lease --seed 7 > tests/lab/leases/seed_7.txt"
SHOW = "from bursar.cli import main; main(['sim', 'lease', '--seed', '7'])"


def history_of(seed: int) -> str:
    return "\n".join(run_seed("lease", seed).history) + "\n"


def test_seed_7_has_the_history_on_record() -> None:
    assert history_of(7) == GOLDEN.read_text(), (
        f"the history of seed 7 changed; if that was meant, look at it and write it anew: {COMMAND}"
    )


@pytest.mark.parametrize("seed", [0, 7, 8, 21])
def test_two_runs_of_a_seed_are_equal(seed: int) -> None:
    assert history_of(seed) == history_of(seed)


def test_two_seeds_differ() -> None:
    assert history_of(7) != history_of(8)


@pytest.mark.parametrize(
    ("hash_seed", "options", "before"),
    [
        ("0", [], ""),
        ("1", [], ""),
        ("4242", ["-X", "dev"], ""),
        ("random", ["-O"], ""),
        ("7", [], "import decimal, email, http.server, json, sqlite3, unittest.mock, xml.dom.minidom; "),
        (
            "8",
            [],
            "import random; random.seed(3); random.random(); import asyncio, gc; gc.set_threshold(5); ",
        ),
    ],
)
def test_history_is_the_same_in_every_interpreter(hash_seed: str, options: list[str], before: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    shown = subprocess.run(
        [sys.executable, *options, "-c", before + SHOW],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert shown.stdout == GOLDEN.read_text()
    assert shown.stderr == ""


async def test_history_is_the_same_inside_a_running_event_loop() -> None:
    assert history_of(7) == GOLDEN.read_text()
