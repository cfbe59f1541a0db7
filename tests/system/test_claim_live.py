"""A paused holder on a real ZooKeeper: deposed while it slept, refused when it wakes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bursar.integrations.guards import SqlGuard
from bursar_lab.zookeeper_server import ZookeeperServers

pytestmark = pytest.mark.needs("zookeeper")

TRIALS = int(os.environ.get("BURSAR_SIGSTOP_TRIALS", "3"))
HOLDER = Path(__file__).with_name("claim_holder.py")


class Holder:
    def __init__(self, url: str, database: Path, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HOLDER), url, str(database), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> list[str]:
        assert self._process.stdout is not None
        return self._process.stdout.readline().split()

    def write(self) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self.hear()[0]

    def signal(self, sent: signal.Signals) -> None:
        self._process.send_signal(sent)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def test_a_holder_stopped_past_its_session_is_refused_by_the_guard(tmp_path: Path) -> None:
    database = tmp_path / "guarded.db"
    with sqlite3.connect(database) as connection:
        SqlGuard().create(connection)
        connection.execute("CREATE TABLE writes (who TEXT, fence INTEGER)")
    connection.close()
    with ZookeeperServers(1) as servers:
        for trial in range(TRIALS):
            check_one_trial(servers.url(f"/trial-{trial}"), database)


def check_one_trial(url: str, database: Path) -> None:
    first = Holder(url, database, "first")
    second = None
    try:
        assert first.hear()[0] == "granted"
        # The first write opens a new store of this trial: its fences begin anew, so the guard too.
        with sqlite3.connect(database) as connection:
            connection.execute("DELETE FROM bursar_fences")
        connection.close()
        assert first.write() == "written"
        first.signal(signal.SIGSTOP)
        second = Holder(url, database, "second")
        granted = second.hear()
        assert granted[0] == "granted"
        assert second.write() == "written"
        first.signal(signal.SIGCONT)
        assert first.write() == "refused"
        assert second.write() == "written"
    finally:
        first.signal(signal.SIGCONT)
        first.stop()
        if second is not None:
            second.stop()
