"""Workloads: who asks for how much, when. (Section V-A of the quota paper.)

`zipf` is the paper's synthetic trace: requests fall on nodes by a Zipf law.

`world_cup` stands in for the 1998 World Cup logs, which cannot be had here. It has the properties
that the paper uses: 30 servers behind a load balancer (each gets the same share, within a few per
cent), and response sizes with a heavy tail (a log-normal body around 1.5 kB with a Pareto tail, as
Arlitt and Jin describe the logs: most transfers are small, a few per cent of them carry most
bytes). Arrivals swing over the trace like a day. `read_world_cup` reads the real thing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bursar.errors import FormatError
from bursar.world import SECOND_NS

Whole = NDArray[np.int64]

WORLD_CUP_NODES = 30
BODY_MEDIAN = 1_500
BODY_SIGMA = 1.1
TAIL_PART = 0.05
TAIL_ALPHA = 1.3
TAIL_BEGIN = 10_000
SIZE_MAX = 3_000_000
SWING = 0.3

_RECORD = struct.Struct(">IIIIBBBB")


@dataclass(frozen=True, slots=True)
class Trace:
    """For each node its requests in order: when (ns) and how much."""

    name: str
    times: tuple[Whole, ...]
    sizes: tuple[Whole, ...]

    @property
    def nodes(self) -> int:
        return len(self.times)

    @property
    def requests(self) -> int:
        return sum(len(times) for times in self.times)

    @property
    def mean(self) -> int:
        return max(1, int(sum(int(sizes.sum()) for sizes in self.sizes) // max(1, self.requests)))


def make_zipf(
    nodes: int, requests: int, seed: int, *, size: int = 100, exponent: float = 1.0, per_second: float = 100.0
) -> Trace:
    """Sizes are uniform around `size`; `per_second` is a node's mean rate of requests."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, nodes + 1) ** exponent
    rng.shuffle(weights)
    where = rng.choice(nodes, size=requests, p=weights / weights.sum())
    sizes = rng.integers(1, 2 * size, size=requests, endpoint=False)
    return _spread("zipf", nodes, where, sizes, _steady(rng, requests, nodes * per_second))


def make_world_cup(
    requests: int, seed: int, *, nodes: int = WORLD_CUP_NODES, per_second: float = 100.0
) -> Trace:
    rng = np.random.default_rng(seed)
    weights = rng.normal(1, 0.03, nodes).clip(0.9, 1.1)
    where = rng.choice(nodes, size=requests, p=weights / weights.sum())
    sizes = np.exp(rng.normal(np.log(BODY_MEDIAN), BODY_SIGMA, requests))
    tail = rng.random(requests) < TAIL_PART
    sizes[tail] = TAIL_BEGIN * (1 + rng.pareto(TAIL_ALPHA, int(tail.sum())))
    sizes = sizes.clip(1, SIZE_MAX).astype(np.int64)
    times = _steady(rng, requests, nodes * per_second)
    phase = times / times[-1]
    swung = times[-1] * (phase + SWING / (2 * np.pi) * np.sin(2 * np.pi * phase))
    return _spread("world-cup", nodes, where, sizes, np.sort(swung.astype(np.int64)))


def _steady(rng: np.random.Generator, requests: int, per_second: float) -> Whole:
    gaps = rng.exponential(SECOND_NS / per_second, requests)
    times: Whole = np.cumsum(gaps).astype(np.int64)
    return times


def _spread(name: str, nodes: int, where: Whole, sizes: Whole, times: Whole) -> Trace:
    order = np.argsort(where, kind="stable")
    ends = np.searchsorted(where[order], np.arange(1, nodes))
    return Trace(
        name,
        tuple(np.split(times[order], ends)),
        tuple(part.astype(np.int64) for part in np.split(sizes[order], ends)),
    )


def read_world_cup(path: Path, *, requests_max: int = 10**8) -> Trace:
    """The logs' own binary form: 20 bytes a request, big-endian: timestamp, client, object, size
    (4 each), method, status, type, server (1 each). A size of 2^32 - 1 means unknown. The server's
    upper bits are its site: all eight together name one server."""
    with path.open("rb") as log:
        data = log.read(requests_max * _RECORD.size)
    if len(data) == 0 or len(data) % _RECORD.size:
        raise FormatError(
            f"{path}: {len(data)} bytes are not records of {_RECORD.size}; unpack the log first"
        )
    fields = np.frombuffer(
        data,
        dtype=[("time", ">u4"), ("client", ">u4"), ("object", ">u4"), ("size", ">u4"), ("rest", "u1", 4)],
    )
    fields = fields[fields["size"] != 2**32 - 1]
    _, where = np.unique(fields["rest"][:, 3], return_inverse=True)
    seconds = fields["time"].astype(np.int64)
    # Many requests share a second: spread within it in the order of the log.
    first = np.searchsorted(seconds, seconds, side="left")
    count = np.searchsorted(seconds, seconds, side="right") - first
    within = (np.arange(len(seconds)) - first) * SECOND_NS // count
    times = (seconds - seconds[0]) * SECOND_NS + within
    sizes = fields["size"].astype(np.int64).clip(1)
    return _spread("world-cup", int(where.max()) + 1, where.astype(np.int64), sizes, times)
