"""A name for one owner at a time: a lock in Redis, kazoo's, PostgreSQL's, bursar's claim.

The owner writes to a register, and is paused in the middle of its work for longer than the system waits for
it (2 s for the others; bursar's daemon gives up a client that is silent after ten). The next in line becomes
the owner and writes; then the first wakes up and goes on. Counted: its writes that the register took after
the next owner's first.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from bursar.errors import BursarError
from bursar_lab.benchmarks.peers.holder import open_register
from bursar_lab.benchmarks.peers.servers import serve_bursar, serve_redis
from bursar_lab.postgresql_server import DATABASE, PostgresqlServers
from bursar_lab.zookeeper_server import ZookeeperServers

MODULE = "bursar_lab.benchmarks.peers.holder"
LONGEST_S = 20.0
WRITTEN_S = 0.5
FAULT = "owner paused (SIGSTOP) until another has it"
CLAIM = '[resource.site]\nkind = "claim"\ndead_holder = "fail"'

Written = list[str]


def try_all(folder: Path) -> list[dict[str, Any]]:
    rows = []
    with serve_redis(folder / "lock-redis", "--save", "") as server:
        url = f"redis://127.0.0.1:{server.port}"
        rows.append(_row("Redis lock with a time to live", *_contend("redis", url, folder / "redis.db")))
    with ZookeeperServers(1) as zookeeper:
        rows.append(_row("kazoo Lock", *_contend("kazoo", zookeeper.hosts, folder / "kazoo.db")))
    with PostgresqlServers(1) as postgresql:
        dsn = postgresql.url().partition("?")[0]
        waited_s, told, _ = _contend("postgresql", dsn, None)
        asked = "SELECT who FROM writes ORDER BY number"
        written = postgresql.sql(0, asked, database=DATABASE).split()
        rows.append(_row("PostgreSQL, lock and writes in one transaction", waited_s, told, written))
    with serve_bursar(folder / "claims", CLAIM) as server:
        url = f"bursar://127.0.0.1:{server.port}"
        rows.append(_row("bursar claim, and its guard", *_contend("bursar", url, folder / "bursar.db")))
    return rows


def _start(system: str, url: str, register: Path | None, who: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", MODULE, system, url, str(register), who]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _contend(system: str, url: str, register: Path | None) -> tuple[float | None, bool, Written]:
    """After how long the next one had it, whether the first was told that it lost it, and who wrote."""
    first = _start(system, url, register, "first")
    _await(first, "have")
    following = _start(system, url, register, "next")
    _await(first, "working")
    os.kill(first.pid, signal.SIGSTOP)
    paused = time.monotonic()
    try:
        waited_s = _await_owner(following, paused)
        time.sleep(WRITTEN_S)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    told = "lost" in first.communicate(timeout=60)[0]
    following.communicate(timeout=60)
    written = []
    if register is not None:
        with closing(open_register(str(register))) as rows:
            written = [who for (who,) in rows.execute("SELECT who FROM writes ORDER BY number")]
    return waited_s, told, written


def _await(holder: subprocess.Popen[str], word: str) -> None:
    assert holder.stdout is not None
    while holder.stdout.readline().strip() != word:
        if holder.poll() is not None:
            raise BursarError(f"a holder ended before it said that it is {word}")


def _await_owner(following: subprocess.Popen[str], paused: float) -> float | None:
    assert following.stdout is not None
    readable, _, _ = select.select([following.stdout], [], [], LONGEST_S)
    return time.monotonic() - paused if readable else None


def _row(pick: str, waited_s: float | None, told: bool, written: Written) -> dict[str, Any]:
    began = written.index("next") if "next" in written else len(written)
    stale = written[began:].count("first")
    when = "the next never had it" if waited_s is None else f"the next had it after {waited_s:.1f} s"
    writes = f"{stale} write{'' if stale == 1 else 's'} of the deposed owner taken"
    noticed = "" if told else ", and it noticed nothing"
    return {
        "for": "one owner",
        "pick": pick,
        "fault": FAULT,
        "limit": 0,
        "told": stale,
        "what came": f"{when}; {writes}{noticed}",
    }
