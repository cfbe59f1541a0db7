"""One pool, three programs, words in an MPI window: what a network card with one-sided atomics would do."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from bursar.errors import BursarError, UsageError
from bursar_lab.experiments.pools.bars import Findings, at_least, check, conclude

REST = 0.9
TIMEOUT_S = 120.0


def programs(out: pathlib.Path, quick: bool) -> Findings:
    """No kills: a rank that is killed ends the whole job, which is MPI's way."""
    launcher = pathlib.Path(sys.executable).with_name("mpiexec")
    if importlib.util.find_spec("mpi4py") is None or not launcher.exists():
        raise UsageError("this experiment needs an MPI beside Python: pip install mpi4py mpich")
    from bursar_lab.experiments.pools.mpi_program import CAPACITY, RESERVATIONS, TIMED

    ranks = _run(launcher, len(RESERVATIONS) + 1, 8.0 if quick else 60.0)
    granted = {rank["tenant"]: {int(key): n for key, n in rank["granted"].items()} for rank in ranks}
    total: dict[int, int] = {}
    for each in granted.values():
        for period, tokens in each.items():
            total[period] = total.get(period, 0) + tokens
    first = max(min(each) for each in granted.values()) + 1
    whole = range(first, max(total))
    missed = [
        f"{tenant} in {period}: {granted[tenant].get(period, 0)}"
        for tenant, due in RESERVATIONS.items()
        for period in whole
        if granted[tenant].get(period, 0) < due
    ]
    most, rest = max(total.values()), sum(total[p] for p in whole) / (len(whole) * CAPACITY)
    addition_us = max(rank["addition_us"] for rank in ranks)
    added = max(rank["added"] for rank in ranks)
    table = [
        {"what": "whole periods", "value": len(whole)},
        {"what": "most granted in a period", "value": most},
        {"what": "of the capacity", "value": round(rest, 3)},
        {"what": "an addition while three add, us", "value": round(addition_us, 2)},
        {"what": f"additions that arrived, of {TIMED * len(ranks)}", "value": added},
    ]
    return conclude(
        {"table": table},
        check("no period grants more than its capacity", most, most <= CAPACITY),
        check("reservations are met in whole periods", ", ".join(missed) or "all", not missed),
        at_least("the greedy one gets the rest", rest, REST),
        check("every addition counts", added, added == TIMED * len(ranks)),
    )


def _run(launcher: pathlib.Path, ranks: int, seconds: float) -> list[dict[str, Any]]:
    module = "bursar_lab.experiments.pools.mpi_program"
    with tempfile.TemporaryDirectory(prefix="bursar-mpi-") as folder:
        command = [str(launcher), "-n", str(ranks), sys.executable, "-m", module, folder, str(seconds)]
        ended = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S + seconds, check=False)
        if ended.returncode:
            raise BursarError(f"mpiexec ended with {ended.returncode}: {ended.stderr.decode()[-2000:]}")
        return [json.loads(path.read_text()) for path in sorted(pathlib.Path(folder).glob("*.json"))]
