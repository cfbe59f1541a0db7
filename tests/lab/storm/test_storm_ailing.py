"""What ails a store, and whoever does the tasks."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from pathlib import Path

from bursar_lab.storm.engines import SqliteEngine
from bursar_lab.storm.history import History
from bursar_lab.storm.worker import Worker

PATIENCE_S = 20.0


def is_free(path: Path) -> bool:
    """Whether somebody could write now."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


def test_a_slow_store_works_now_and_then_and_a_healed_one_always(tmp_path: Path) -> None:
    engine, path = SqliteEngine(tmp_path), tmp_path / "store.db"
    assert is_free(path)
    assert engine.slow() == "store.db"
    seen: set[bool] = set()
    until = time.monotonic() + PATIENCE_S
    while seen != {True, False} and time.monotonic() < until:
        seen.add(is_free(path))
    engine.heal()
    assert seen == {True, False}
    assert all(is_free(path) for _ in range(20))


def test_a_store_that_is_away_is_away_until_it_is_healed(tmp_path: Path) -> None:
    engine, path = SqliteEngine(tmp_path), tmp_path / "store.db"
    engine.pause(True)
    assert not is_free(path)
    engine.heal()
    assert is_free(path)


def test_a_worker_that_ends_is_started_again_and_one_that_was_killed_is_not(tmp_path: Path) -> None:
    history = History(tmp_path / "fleet.jsonl")
    worker = Worker([sys.executable, "-c", "input()"], tmp_path / "worker.log", history)
    worker.kill()
    worker.tend()
    assert not (tmp_path / "fleet.jsonl").read_text()
    worker.restart()
    until = time.monotonic() + PATIENCE_S
    while not (tmp_path / "fleet.jsonl").read_text() and time.monotonic() < until:
        worker.tend()  # it reads the end of its input, and is over
    (line,) = [json.loads(text) for text in (tmp_path / "fleet.jsonl").read_text().splitlines()[:1]]
    assert (line["what"], line["node"]) == ("exit", "worker")
    worker.stop()
