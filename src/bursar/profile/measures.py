"""A client alone, all together, and how much that varies."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

import msgspec

from bursar.profile.client import Order
from bursar.profile.processes import Processes, begin_all, collect

CLIENT = "bursar.profile.client"
CLIENTS = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """What this machine does, in I/Os a second: a client alone, all together, and how far the
    latter varies from second to second."""

    client: float
    capacity: float
    sigma: float


def measure_profile(
    processes: Processes, seconds: float, *, many: bool = True, clients: int = CLIENTS
) -> Profile:
    alone = sum(count_reads(processes, 1, seconds, many=many)[0].values()) / seconds
    totals: Counter[int] = Counter()
    for done in count_reads(processes, clients, seconds, many=many):
        totals.update(done)
    whole = [totals[second] for second in sorted(totals)][: int(seconds)]
    sigma = statistics.stdev(whole) if len(whole) > 1 else 0.0
    return Profile(alone, statistics.mean(whole), sigma)


def count_reads(
    processes: Processes, clients: int, seconds: float, *, many: bool = True
) -> list[dict[int, int]]:
    """What each client read in each second, side by side."""
    store = str(processes.records)
    orders = [Order(store=store, seconds=seconds, many=many, seed=number) for number in range(clients)]
    started = processes.start_all(CLIENT, orders)
    begin_all(started)
    return [msgspec.json.decode(collect(each, seconds), type=dict[int, int]) for each in started]
