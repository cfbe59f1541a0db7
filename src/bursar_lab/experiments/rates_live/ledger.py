"""What was really served, in files that outlive whoever is killed: the ground truth.

A count is raised in shared memory of a file before the request goes to its backend; the kernel
keeps it whatever becomes of the process.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from bursar_lab.experiments.rates_live.plan import SLICE_NS, Plan

Whole = npt.NDArray[np.int64]


class Ledger:
    """One life of a server: requests by period and tenant, and by slice of time and tenant."""

    def __init__(self, folder: Path, plan: Plan, life: str, mode: str = "r") -> None:
        create = mode == "w+"
        self.periods: Whole = np.memmap(
            folder / f"{life}.periods",
            np.int64,
            "w+" if create else "r",
            shape=(plan.periods, len(plan.terms)),
        )
        self.slices: Whole = np.memmap(
            folder / f"{life}.slices", np.int64, "w+" if create else "r", shape=(plan.slices, len(plan.terms))
        )
        self._position = {tenant: index for index, tenant in enumerate(plan.terms)}
        self.began_at = 0

    def count(self, now: int, tenant: str, period: int, tokens: int) -> None:
        index = self._position[tenant]
        self.periods[min(period, len(self.periods) - 1), index] += tokens
        self.slices[min(max(now - self.began_at, 0) // SLICE_NS, len(self.slices) - 1), index] += tokens


def read_ledgers(folder: Path, plan: Plan) -> dict[str, tuple[Whole, Whole]]:
    """By life of a server ("s1.1"): (requests by period, requests by slice)."""
    found = {}
    for path in sorted(folder.glob("*.periods")):
        ledger = Ledger(folder, plan, path.name.removesuffix(".periods"))
        found[path.name.removesuffix(".periods")] = (np.array(ledger.periods), np.array(ledger.slices))
    return found
