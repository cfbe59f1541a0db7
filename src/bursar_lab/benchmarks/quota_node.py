"""A node as `bursar serve` starts it, whose wall clock goes an hour ahead at each SIGUSR1: a window turns
when the benchmark wants it to. One that is started again begins as many hours ahead as HOURS_AHEAD says."""

from __future__ import annotations

import os
import signal
import sys
import time

from bursar.cli import main
from bursar.runtime.clock import BootClock

HOUR_NS = 3600 * 10**9
_ahead_ns = int(os.environ.get("HOURS_AHEAD", "0")) * HOUR_NS


def _wall(self: BootClock) -> int:
    return time.time_ns() + _ahead_ns


def _skip_hour(number: int, frame: object) -> None:
    global _ahead_ns
    _ahead_ns += HOUR_NS


if __name__ == "__main__":
    BootClock.wall = _wall  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, _skip_hour)
    sys.argv[0] = "bursar"
    main()
