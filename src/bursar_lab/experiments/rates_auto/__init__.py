"""Is a capacity of `"auto"` found out, and are reservations met by it as by one that is given?

A server that is bound by its rate (one worker) and one that is bound by its concurrency (twenty), kept
busy by three tenants, of which two have nine tenths of it reserved: at the start, and after it became
half as fast, fast again, idle for five seconds, and stood still for one. Once through `bursar.connect` with
a policy, once through `bursar serve` and a client process; and both with the capacity given.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bursar.demo.ports import find_free_port
from bursar_lab.experiments.rates_auto.course import write_policy
from bursar_lab.processes import await_port

CLIENT = "bursar_lab.experiments.rates_auto.client"
RATE = 500.0
WORKERS = {"rate": 1, "concurrency": 20}
ERROR_MAX = 0.1
MET_MIN = 0.99
START_TIMEOUT_S = 120.0

DAEMON = """
[daemon]
listen = "127.0.0.1:{port}"
http = "off"
state = "{state}"
"""


def auto(out: Path, quick: bool) -> dict[str, Any]:
    watch_s = 3.0 if quick else 10.0
    rows = []
    for through in ("connect",) if quick else ("connect", "daemon"):
        for capacity in ("auto", f"{RATE:.0f}/s"):
            for bound, workers in WORKERS.items():
                print(f"  {through}, bound by its {bound}, {capacity}:", file=sys.stderr, flush=True)
                found = _run(through, capacity, workers, watch_s)
                told = {"through": through, "bound by": bound, "capacity": capacity}
                rows += [{**told, **_tell(each)} for each in found]
    return _conclude(rows)


def _run(through: str, capacity: str, workers: int, watch_s: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="bursar-auto-") as folder:
        port = find_free_port()
        policy = Path(folder) / "policy.toml"
        daemon = DAEMON.format(port=port, state=Path(folder) / "state")
        policy.write_text(write_policy(capacity, RATE) + daemon)
        if through == "connect":
            return _run_client(str(policy), workers, watch_s)
        command = [sys.executable, "-m", "bursar", "serve", str(policy)]
        child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            await_port(port, child, START_TIMEOUT_S)
            return _run_client(f"bursar://127.0.0.1:{port}", workers, watch_s)
        finally:
            child.terminate()
            child.wait(10)


def _run_client(address: str, workers: int, watch_s: float) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", CLIENT, address, str(RATE), str(workers), str(watch_s)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120 + 6 * watch_s, check=True)
    found: list[dict[str, Any]] = json.loads(told.stdout)
    return found


def _tell(found: dict[str, Any]) -> dict[str, Any]:
    met = found["met"]
    return {
        "after": found["change"],
        "truth": round(found["truth"], 1),
        "estimate": round(found["estimate"], 1),
        "error": round(found["error"], 4),
        "met": "" if met is None else round(met, 4),
        "used": round(found["used"], 4),
    }


def _conclude(rows: list[dict[str, Any]]) -> dict[str, Any]:
    learnt = [row for row in rows if row["capacity"] == "auto"]
    given = [row for row in rows if row["capacity"] != "auto"]
    worst = max(abs(row["error"]) for row in learnt)
    met, met_given = (min(row["met"] for row in some if row["met"] != "") for some in (learnt, given))
    bars = [
        {
            "bar": f"the estimate is off by at most {ERROR_MAX:.0%} 3 s after each change",
            "found": worst,
            "met": worst <= ERROR_MAX,
        },
        {
            "bar": f"each reservation is met to {MET_MIN:.0%} in each period after that (with the capacity "
            f"given: {met_given:.1%})",
            "found": met,
            "met": met >= MET_MIN,
        },
    ]
    return {"table": rows, "bars": bars, "ok": all(bar["met"] for bar in bars)}
