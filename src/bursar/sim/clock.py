"""A clock that runs a little too fast or too slow, and starts anywhere."""

from __future__ import annotations

from bursar.sim.loop import Life, VirtualLoop, sleep_until
from bursar.world import SECOND_NS

PPM = 1_000_000
WALL_START_NS = 1_767_225_600 * SECOND_NS
"""Midnight of 2026-01-01 UTC, when every run begins."""


class DriftingClock:
    """World's `clock` of one life: `(PPM + drift_ppm) / PPM` local nanoseconds for each true one,
    counted from boot, beginning at `start_ns`. `origin` numbers the machine's boots."""

    def __init__(
        self,
        loop: VirtualLoop,
        life: Life,
        drift_ppm: int,
        start_ns: int,
        wall_error_ns: int = 0,
        boot: int = 0,
    ) -> None:
        self.drift_ppm = drift_ppm
        self._loop = loop
        self._life = life
        self._start_ns = start_ns
        self._wall_error_ns = wall_error_ns
        self.boot = boot
        self._booted_ns = loop.now_ns

    def now(self) -> int:
        self._life.check()
        return self.read()

    def origin(self) -> str:
        self._life.check()
        return str(self.boot)

    def read(self) -> int:
        """What it shows, also on a dead node: for the checks of a scenario."""
        elapsed_ns = self._loop.now_ns - self._booted_ns
        return self._start_ns + elapsed_ns * (PPM + self.drift_ppm) // PPM

    def true_ns(self, local_ns: int) -> int:
        """The first true moment at which this clock shows at least that."""
        elapsed_ns = -(-(local_ns - self._start_ns) * PPM // (PPM + self.drift_ppm))
        return self._booted_ns + elapsed_ns

    def wall(self) -> int:
        self._life.check()
        return WALL_START_NS + self._loop.now_ns + self._wall_error_ns

    async def sleep(self, duration_ns: int) -> None:
        self._life.check()
        await sleep_until(self._loop, self.true_ns(self.read() + duration_ns))
