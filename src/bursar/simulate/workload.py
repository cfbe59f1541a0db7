"""Who asks for what, where and when, in arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a simulation. `rate` is what an average server can do in a second."""

    servers: int
    tenants: int
    rate: int
    period_s: float

    @property
    def capacity(self) -> int:
        """Requests that a server can serve in a period."""
        return round(self.rate * self.period_s)


@dataclass(frozen=True)
class Workload:
    """Flows of requests, in order of server: flow f sends requests of `tenant[f]` to `server[f]`
    at an even pace from `start[f]` to `end[f]` (seconds), the first at `first[f]`."""

    shape: Shape
    reservation: Whole
    changed_at: Real
    tenant: Whole
    server: Whole
    start: Real
    end: Real
    pace: Real
    first: Real
