"""`bursar bench peers`: bursar beside what one would pick instead, when nothing fails and when something
does.

Four jobs: a limit on calls, a budget, one owner at a time, work that is to be done. For each the picks that
people have, in the settings that suit them; what they cost (`costs`, from the other benchmarks), and what
came of the same fault: the server killed with -9, paused, cut off, an answer lost, a client paused. Counted
is what clients were told, or what a register took, by a program that knows nothing of whom it asks. All in
one run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bursar_lab.benchmarks.peers import budgets, costs, limiters, locks, queues

OWN = "bursar"


def run(quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bursar-peers-", dir="/var/tmp") as folder:
        faults = [
            *limiters.try_all(Path(folder)),
            *budgets.try_all(Path(folder)),
            *locks.try_all(Path(folder)),
            *queues.try_all(),
        ]
    bars = [
        {
            "bar": f"{row['pick']}, {row['fault']}: at most {row['limit']}",
            "found": row["told"],
            "met": row["told"] <= row["limit"],
        }
        for row in faults
        if row["pick"].startswith(OWN)
    ]
    return {
        "table": [*costs.measure_all(quick), *faults],
        "bars": bars,
        "semantics": __doc__,
        "ok": all(bar["met"] for bar in bars),
    }
