"""The paper's figure 7 on a real disk: lent while a group wants little, paid back when it wants all."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import bursar.sync
from bursar.integrations.blkio.groups import find_controller, find_device
from bursar_lab.experiments.shares.figures import draw_payback
from bursar_lab.experiments.shares.kernel import (
    CAPACITY_BYTES,
    INTERVAL_MS,
    MIB,
    make_groups,
    start_bursar,
    start_fio,
    write_file,
)
from bursar_lab.experiments.shares.measures import Check

WEIGHTS = {"a": 1, "b": 1}
STEADY_PART = 0.1
LOOK_S = 0.1
FULL_PART = 0.9
"""The lender is greedy from the moment in which it first has this part of its own."""


def payback(out: Path, quick: bool) -> dict[str, Any]:
    """A tenth of the disk for some seconds, then all it can get, beside a greedy one of the same weight."""
    lends_s, paid_s = (4.0, 25.0) if quick else (8.0, 45.0)
    controller = find_controller()
    with tempfile.TemporaryDirectory(prefix="bursar-blkio-", dir="/var/tmp") as name:
        folder, device = Path(name), find_device(name)
        for tenant in WEIGHTS:
            write_file(folder / f"{tenant}.data")
        with make_groups(controller) as groups:
            processes: list[subprocess.Popen[Any]] = [start_bursar(folder, device, groups, WEIGHTS)]
            try:
                paths = {tenant: controller.root / path for tenant, path in groups.items()}
                processes.append(start_fio(folder, "b", paths["b"], lends_s + paid_s + 5))
                steady = int(STEADY_PART * CAPACITY_BYTES)
                lender = start_fio(folder, "a", paths["a"], lends_s, rate=steady)
                with bursar.sync.connect((folder / "url").read_text()) as b:
                    watch = _Watch(b, controller, device, groups)
                    watch.go_on(lends_s)
                    lender.terminate()
                    lender.wait(timeout=20)
                    processes.append(start_fio(folder, "a", paths["a"], paid_s + 5))
                    watch.go_on(paid_s)
            finally:
                for process in processes:
                    process.terminate()
                    process.wait(timeout=20)
    return _conclude(out, watch)


class _Watch:
    """Records and bytes of both, read every tenth of a second."""

    def __init__(self, b: Any, controller: Any, device: str, groups: dict[str, str]) -> None:
        self._b, self._controller, self._device, self._groups = b, controller, device, groups
        self.at_s: list[float] = []
        self.records: dict[str, list[float]] = {name: [] for name in groups}
        self.counts: dict[str, list[int]] = {name: [] for name in groups}
        self.bounds: list[int | None] = []
        self._began = time.monotonic()

    def go_on(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._look()
            time.sleep(LOOK_S)

    def _look(self) -> None:
        tenants = self._b.statistics("disk").part["tenants"]
        self.bounds.append(self._b.explain("disk", self._groups["a"]).figures["payback_intervals"])
        self.at_s.append(time.monotonic() - self._began)
        for name, path in self._groups.items():
            self.records[name].append(tenants[path]["record"] / MIB)
            counts = self._controller.read(path, self._device)
            self.counts[name].append(counts.read + counts.written)

    def rate(self, name: str, first: int, last: int) -> float:
        """MiB a second between two looks."""
        done = self.counts[name][last] - self.counts[name][first]
        return done / MIB / (self.at_s[last] - self.at_s[first])


def _conclude(out: Path, watch: _Watch) -> dict[str, Any]:
    records = watch.records["a"]
    top = max(range(len(records)), key=lambda k: records[k])
    paid = next((k for k in range(top, len(records)) if records[k] <= 0.02 * records[top]), None)
    bound = watch.bounds[top]
    half = CAPACITY_BYTES / MIB / 2
    last = len(records) - 1 if paid is None else paid
    took_s = watch.at_s[last] - watch.at_s[top]
    lender, both = watch.rate("a", top, last), sum(watch.rate(name, top, last) for name in "ab")
    checks = [
        Check("what is not needed is lent", f"a record of {records[top]:.0f} MiB", records[top] > half),
        Check(
            "it is paid within the bound that `bursar why` states",
            f"{'not' if paid is None else f'{took_s:.1f} s'}, bound "
            f"{'none' if bound is None else f'{bound * INTERVAL_MS / 1000:.1f} s'}",
            paid is not None and bound is not None and took_s <= bound * INTERVAL_MS / 1000,
        ),
        Check(
            "meanwhile the lender has more than its part", f"{lender:.1f} of {half:.0f} MiB/s", lender > half
        ),
        Check(
            "and the disk all that was told", f"{both:.1f} of {2 * half:.0f} MiB/s", both >= 0.95 * 2 * half
        ),
    ]
    figure = draw_payback(out / "shares-payback.png", watch.at_s, watch.records)
    table = [f"  {'yes' if check.holds else 'NO '}  {check.claim}: {check.seen}" for check in checks]
    return {
        "figure": figure,
        "table": "\n".join(["shares-payback:", *table]),
        "ok": all(check.holds for check in checks),
    }
