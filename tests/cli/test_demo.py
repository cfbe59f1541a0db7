"""`bursar demo` as a newcomer runs it: its story is true, its dashboard is there, it ends cleanly."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest

from bursar.demo.cluster import CAPACITY, SERVERS, TENANTS

ATTEMPTS = 2
MAIN = "import sys; from bursar.cli import main; main(sys.argv[1:])"


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", MAIN, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        found = re.search(pattern, line)
        if found:
            return found
    raise AssertionError(f"no {pattern} in:\n{''.join(said)}")


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """One whole story without the dashboard: what it measured, and what it said. On a machine so
    busy that the servers cannot do their work even without bursar it tells nothing, and is told
    again; then the tests are skipped, with the figure."""
    for _ in range(ATTEMPTS):
        with demo("--headless", "--seconds", "36", "--json") as process:
            out, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        outcome = json.loads(out)
        served = min(sum(outcome[chapter].values()) for chapter in ("before", "after"))
        if served >= 0.8 * CAPACITY * len(SERVERS):
            return {"outcome": outcome, "said": err}
    pytest.skip(
        f"the machine is too busy: {served:.0f} of {CAPACITY * len(SERVERS)} requests a second served"
    )


def test_greedy_is_held_to_its_limit_once_the_policy_holds(told: dict[str, Any]) -> None:
    before, after = told["outcome"]["before"], told["outcome"]["after"]
    assert set(before) == set(after) == set(TENANTS)
    assert before["greedy"] > 250 * 1.2, "in shadow mode nobody is refused"
    # Counted by the tenants, over a span that need not be whole periods: up to one period more.
    assert after["greedy"] < 250 * 1.5
    assert after["greedy"] < before["greedy"] / 1.5
    assert after["acme"] > 1.5 * before["acme"]


def test_tokens_move_when_a_server_is_killed_and_come_back(told: dict[str, Any]) -> None:
    killed, back = told["outcome"]["killed"], told["outcome"]["restarted"]
    assert set(killed["held"]) == set(SERVERS)
    assert set(killed["moved"]) == set(SERVERS) - {"d"}
    assert sum(killed["moved"].values()) > sum(n for s, n in killed["held"].items() if s != "d")
    assert back["held"]["d"] > 0


def test_a_lender_is_owed_and_paid_back(told: dict[str, Any]) -> None:
    assert told["outcome"]["lent"] > 0
    paid = told["outcome"]["paid_back"]
    assert paid["after"] < paid["before"]


def test_a_budget_runs_out_and_the_queue_moves(told: dict[str, Any]) -> None:
    assert "left" in told["outcome"]["acme/search"]
    assert "operations done" in told["outcome"]["machines"]


def test_what_it_tells_is_what_it_measured(told: dict[str, Any]) -> None:
    greedy = told["outcome"]["after"]["greedy"]
    assert f"greedy gets {greedy:.0f} a second" in told["said"]
    for figure in ("is killed", "started again", "pay back", "The end."):
        assert figure in told["said"]
    assert "Traceback" not in told["said"]


def test_a_taken_port_is_no_obstacle_and_ctrl_c_is_clean() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with demo("--port", str(port)) as process:
            url = read_until(process, r"dashboard: (http://127\.0\.0\.1:(\d+))")
            assert url.group(2) != str(port)
            with urlopen(f"{url.group(1)}/api/statistics", timeout=20) as answer:
                assert "api" in json.load(answer)["statistics"]
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
            assert process.returncode == 130
            assert time.monotonic() - began < 15
            assert out.endswith("stopped\n") and "Traceback" not in err


@pytest.mark.parametrize("arguments", [["--seconds", "-1"], ["--seconds", "1e9"], ["--port", "70000"]])
def test_nonsense_is_refused_with_what_to_write(arguments: list[str]) -> None:
    with demo(*arguments) as process:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2 and arguments[0] in err and "Traceback" not in err
