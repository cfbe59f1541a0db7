"""A limit on calls: libraries in each process, counters in Redis, Envoys with fixed parts, bursar's rate.

Two processes ask as fast as they can, for some seconds. Then what counts is killed and started again within
a minute whose limit is used up; or it is paused for two seconds, and the longest call is what a caller waits.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bursar.policy import RatePolicy, parse
from bursar.units import read_rate
from bursar_lab.benchmarks.peers.servers import Server, serve_bursar, serve_redis
from bursar_lab.experiments.envoy.processes import Bursar, Envoy, find_ports, make_static_filter, start_envoy

A_SECOND = 200
A_MINUTE = 1_000
SECONDS = 4
WARM_S = 12
PAUSE_S = 2.0
MODULE = "bursar_lab.benchmarks.peers.worker"

POLICY = """
[resource.calls]
kind = "rate"
period = "{period}"
servers = {{ here = "100k/s" }}
without_bursar = "refuse"
{more}
[resource.calls.tenant]
acme = {{ limit = "{limit}" }}
"""
SECOND = POLICY.format(period="1s", limit=f"{A_SECOND}/s", more="")
MINUTE = POLICY.format(period="1min", limit=f"{A_MINUTE}/min", more="pacing = false")
"""Unpaced, as the others are: a minute's tokens may be used at once."""

TWO = f"none: two processes, {SECONDS} s"
KILL = "counter killed (-9), started again, in one minute"
PAUSE = f"counter paused for {PAUSE_S:g} s"


class Workers:
    """Processes that begin at the same moment."""

    def __init__(
        self, pick: str, urls: list[str], limit: int, period_s: int, seconds: float, warm_s: float = 0
    ) -> None:
        command = [sys.executable, "-m", MODULE, pick]
        rest = [str(limit), str(period_s), str(seconds), str(warm_s)]
        self._children = [
            subprocess.Popen([*command, url, *rest], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for url in urls
        ]
        for child in self._children:
            assert child.stdout is not None
            child.stdout.readline()
        for child in self._children:
            assert child.stdin is not None
            print("go", file=child.stdin, flush=True)

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(child.communicate(timeout=60)[0]) for child in self._children]


def try_all(folder: Path) -> list[dict[str, Any]]:
    rows = [_ask_two(pick, ["", ""]) for pick in ("limits", "throttled-py", "token-bucket", "aiolimiter")]
    with serve_redis(folder / "redis") as server:
        url = f"redis://127.0.0.1:{server.port}"
        for pick in ("limits", "throttled-py"):
            name = f"{pick} over Redis"
            rows.append(_ask_two(pick, [url, url], name))
            rows.append(_kill(pick, url, server, name))
            rows.append(_pause(pick, url, server, name))
    rows.append(_ask_envoys(folder))
    rows += _try_bursar(folder)
    return rows


def _ask_two(pick: str, urls: list[str], name: str = "", warm_s: float = 0) -> dict[str, Any]:
    found = Workers(pick, urls, A_SECOND, 1, SECONDS, warm_s).read()
    told = sum(each["told"] for each in found)
    most = A_SECOND * (SECONDS + 1)
    return _row(name or f"{pick}, in each process", TWO, most, told, f"{told / SECONDS:.0f} a second")


def _kill(pick: str, url: str, server: Server, name: str) -> dict[str, Any]:
    """Both ask in one minute: one before, one after."""
    _await_room()
    before = Workers(pick, [url], A_MINUTE, 60, 3).read()[0]["told"]
    server.kill()
    server.start()
    after = Workers(pick, [url], A_MINUTE, 60, 3).read()[0]["told"]
    twice = max(0, before + after - A_MINUTE)
    return _row(name, KILL, A_MINUTE, before + after, f"{twice} above the limit")


def _await_room() -> None:
    """Counters go by the clock's minute: it is not to end meanwhile."""
    if (second := time.time() % 60) > 40:
        time.sleep(60 - second)


def _pause(pick: str, url: str, server: Server, name: str) -> dict[str, Any]:
    workers = Workers(pick, [url], A_SECOND, 1, SECONDS)
    threading.Timer(1.0, server.pause).start()
    threading.Timer(1.0 + PAUSE_S, server.resume).start()
    found = workers.read()[0]
    failed = f", {found['failed']} failed" if found["failed"] else ""
    most = A_SECOND * (SECONDS + 1)
    return _row(name, PAUSE, most, found["told"], f"longest call {found['longest_s']:.2f} s{failed}")


def _row(pick: str, fault: str, most: int, told: int, came: str) -> dict[str, Any]:
    return {"for": "calls", "pick": pick, "fault": fault, "limit": most, "told": told, "what came": came}


def _ask_envoys(folder: Path) -> dict[str, Any]:
    """Each has the whole limit, because the load may all come to one."""
    parts = make_static_filter({"acme": read_rate(f"{A_SECOND}/s")}, "x-tenant")
    with ExitStack() as stack:
        envoys = [Envoy(folder, name, parts, []) for name in ("static-a", "static-b")]
        for envoy in envoys:
            stack.callback(envoy.stop)
        return _ask_two("envoy", [f"http://127.0.0.1:{each.port}" for each in envoys], "Envoy, static limits")


def _try_bursar(folder: Path) -> list[dict[str, Any]]:
    with serve_bursar(folder / "second", SECOND) as server:
        url = f"bursar://127.0.0.1:{server.port}"
        rows = [_ask_two("bursar", [url, url], "bursar, a daemon"), _pause("bursar", url, server, "bursar")]
    with serve_bursar(folder / "minute", MINUTE) as server:
        rows.append(_kill("bursar", f"bursar://127.0.0.1:{server.port}", server, "bursar"))
    roomy = SECOND.replace(f'"{A_SECOND}/s"', f'"{A_SECOND}/s", burst = {A_SECOND // 2}')
    return [
        *rows,
        _ask_bursars_envoys(folder / "envoys", SECOND, "bursar, with two Envoys"),
        _ask_bursars_envoys(folder / "roomy", roomy, "bursar, with two Envoys and a burst of half a second"),
    ]


def _ask_bursars_envoys(folder: Path, resources: str, name: str) -> dict[str, Any]:
    folder.mkdir()
    text = resources + f'[daemon]\nstate = "{folder}/state"\n'
    file, ports = folder / "policy.toml", find_ports()
    file.write_text(text)
    policy = parse(text).resource("calls")
    assert isinstance(policy, RatePolicy)
    with ExitStack() as stack:
        node = Bursar(file, ports, folder / "bursar.log")
        stack.callback(node.stop)
        node.wait_until_ready()
        envoys = [start_envoy(folder, name, policy, ports[2]) for name in ("a", "b")]
        for envoy in envoys:
            stack.callback(envoy.stop)
        urls = [f"http://127.0.0.1:{each.port}" for each in envoys]
        # Envoys learn what each needs from report to report, which come every five seconds.
        return _ask_two("envoy", urls, name, warm_s=WARM_S)
