"""Load that moves between real Envoys, and small limits: `bursar experiment envoy-moving`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from bursar.policy import RatePolicy, parse
from bursar.runtime.loops import new_event_loop
from bursar_lab.experiments.envoy.load import Load
from bursar_lab.experiments.envoy.processes import Bursar, find_ports, start_envoy

REPORT_S = 5
ENOUGH = 0.97
SMALL_ENOUGH = 0.90
TENANT = "acme"
OVERLOAD = 1.5
POLICY = """
[resource.api]
kind = "rate"
period = "{period}"
servers = {{ node = "1k/s" }}
[resource.api.tenant]
acme = {{ limit = "{limit}" }}
[daemon]
state = "{state}"
"""

CASES = ((2, 7), (2, 12), (2, 20), (2, 40), (3, 7), (3, 12), (3, 20), (3, 40))
"""(Envoys, seconds after which the load moves to the next)"""

SMALL = (("2/s", "1s", 2.0), ("5/s", "1s", 5.0), ("100/min", "3s", 100 / 60))
SMALL_S = 65
SMALL_AFTER_S = 15


def find_ideal(seconds: int) -> float:
    """What moves to where the load is two reports after it moved, and nowhere before."""
    return max(0.0, (seconds - 2 * REPORT_S) / seconds)


async def follow(
    limit: str, period: str, rate: float, envoys: int, seconds: int, moves: int
) -> tuple[list[int], Load]:
    """Tokens admitted, second by second, while all of the load moves on so often."""
    names = tuple("abc"[:envoys])
    with tempfile.TemporaryDirectory(prefix="bursar-envoy-") as folder:
        file, ports = Path(folder) / "policy.toml", find_ports()
        file.write_text(POLICY.format(limit=limit, period=period, state=Path(folder) / "state"))
        node = Bursar(file, ports, Path(folder) / "bursar.log")
        processes = []
        try:
            await asyncio.to_thread(node.wait_until_ready)
            policy = parse(file.read_text()).resource("api")
            assert isinstance(policy, RatePolicy)
            for name in names:
                processes.append(await asyncio.to_thread(start_envoy, Path(folder), name, policy, ports[2]))
            load = Load({name: each.port for name, each in zip(names, processes, strict=True)})
            for move in range(moves):
                load.rates = {(names[move % envoys], TENANT): rate * OVERLOAD}
                await load.run((move + 1) * seconds)
            load.close()
        finally:
            for process in (*processes, node):
                process.stop()
    return [load.admitted(names, TENANT, second) for second in range(moves * seconds)], load


def moving(out: Path, quick: bool) -> dict[str, Any]:
    """`bursar experiment envoy-moving`."""
    table: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        for envoys, seconds in CASES[:1] if quick else CASES:
            moves = envoys + max(envoys, -(-60 // seconds))
            passed, _ = runner.run(follow("100/s", "1s", 100.0, envoys, seconds, moves))
            warm = envoys * seconds  # once with each
            part = sum(passed[warm:]) / (len(passed) - warm) / 100
            better = max(1 / envoys, find_ideal(seconds))
            table.append(
                {"case": f"{envoys} Envoys, every {seconds} s", "part": round(part, 3)}
                | {"static": round(1 / envoys, 3), "two reports": round(find_ideal(seconds), 3)}
                | {
                    "of the better": round(part / better, 3),
                    "enough": ENOUGH,
                    "peak 5 s": find_peak(passed, 100),
                }
            )
        for limit, period, rate in SMALL[:0] if quick else SMALL:
            passed, _ = runner.run(follow(limit, period, rate, 3, SMALL_S, 2))
            after = passed[SMALL_S + SMALL_AFTER_S :]
            part = round(sum(after) / len(after) / rate, 3)
            table.append(
                {"case": f"{limit}, moved once, 15 to 65 s after", "part": part, "of the better": part}
                | {"enough": SMALL_ENOUGH, "peak 5 s": find_peak(passed, rate)}
            )
    return {"table": table, "ok": all(row["of the better"] >= row["enough"] for row in table)}


def find_peak(passed: list[int], rate: float) -> float:
    return round(max(sum(passed[s : s + 5]) for s in range(len(passed) - 4)) / 5 / rate, 3)
