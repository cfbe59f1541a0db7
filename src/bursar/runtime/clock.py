"""The real clock: boot time, so that a suspended machine's pause counts."""

from __future__ import annotations

import asyncio
import functools
import time
from pathlib import Path

from bursar.world import MILLISECOND_NS

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def read_boot_id() -> str:
    """Which boot of the machine this is; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


class BootClock:
    """Implements `bursar.world.Clock`."""

    now = staticmethod(functools.partial(time.clock_gettime_ns, _BOOT_CLOCK))
    """Nanoseconds. It is asked all the time: this way no frame of Python's is made for it."""

    def origin(self) -> str:
        return read_boot_id()

    def wall(self) -> int:
        return time.time_ns()

    async def sleep(self, duration_ns: int) -> None:
        # The event loop's timers may fire a little early, and the promise is "at least". uvloop
        # counts in milliseconds and takes a part of one for none: asked for the rest of one it
        # would turn without sleeping until it is over. So the request is for whole ones.
        until_ns = self.now() + duration_ns
        left_ns = duration_ns
        while left_ns > 0:
            await asyncio.sleep(-(-left_ns // MILLISECOND_NS) / 1_000)
            left_ns = until_ns - self.now()
