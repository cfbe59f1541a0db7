"""Records in shared memory behind a card, and the clients that read them: real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bursar.errors import BursarError
from bursar.profile.measures import Profile
from bursar.profile.processes import begin_all, wait_until
from bursar.world import MILLISECOND_NS, SECOND_NS
from bursar_lab.experiments.pools.card import NodeCard
from bursar_lab.experiments.pools.config import Config, Counts
from bursar_lab.experiments.pools.place import WARM_UP, Outcome, Place, collect, open_place
from bursar_lab.experiments.pools.simulated import CAPACITY, CLIENT, CLIENTS

SCALE = 10
RATE = CAPACITY // SCALE
OWN = CLIENT // SCALE

Demand = Sequence[int | None]


@dataclass(slots=True)
class Measured(Outcome):
    """Also the part of all processors that was used, and the estimates, if a monitor ran."""

    processors: float
    estimates: Sequence[int] = ()


@dataclass(slots=True)
class CardNode:
    """Records in shared memory, behind a card."""

    place: Place
    card: NodeCard

    def _client(self, number: int, seconds: float, **options: Any) -> Config:
        card = str(self.place.root / "card")
        return self.place.config("client", card=card, own=OWN, seconds=seconds, seed=number, **options)

    def run_bare(self, demand: Demand, seconds: float, **options: Any) -> Measured:
        configs = [
            self._client(k, seconds, tokens=False, demand=wanted, **options)
            for k, wanted in enumerate(demand)
        ]
        begun, counts = self._run(configs, seconds)
        opened = [begun + k * SECOND_NS for k in range(int(seconds) + 1)]
        return _measure(counts, opened[1:], seconds)

    def run_tokens(
        self,
        reservations: Sequence[int],
        demand: Demand,
        seconds: float,
        capacity: int,
        *,
        changed_to: int | None = None,
        monitor: dict[str, Any] | None = None,
        **options: Any,
    ) -> Measured:
        """`changed_to`: the card's rate from the middle of the run on."""
        self.place.forget_words()
        promised = {f"C{k + 1}": tokens for k, tokens in enumerate(reservations)}
        watching = self.place.config(
            "monitor",
            seconds=seconds + 1,
            reservations=promised,
            capacity=capacity,
            client_capacity=OWN,
            **(monitor or {}),
        )
        configs = [
            self._client(k, seconds, tenant=name, demand=demand[k], **options)
            for k, name in enumerate(promised)
        ]
        begun, (noted, *counts) = self._run([watching, *configs], seconds, changed_to)
        until = begun + int(seconds * SECOND_NS)
        periods = [period for period, at in sorted(noted.began.items()) if at <= until][WARM_UP:]
        run = _measure(counts, [noted.began[period] for period in periods], seconds, noted)
        return replace(run, estimates=[noted.capacity[period] for period in periods[:-1]])

    def _run(
        self, configs: Sequence[Config], seconds: float, changed_to: int | None = None
    ) -> tuple[int, list[Counts]]:
        processes = self.place.start_all(configs)
        begun = begin_all(processes)
        if changed_to is not None:
            wait_until(begun + int(seconds * SECOND_NS) // 2)
            self.card.set_rate(changed_to)
        counts = [collect(process, seconds) for process in processes]
        self.card.set_rate(RATE)
        return begun, counts


def _measure(counts: Sequence[Counts], opened: Sequence[int], seconds: float, *others: Counts) -> Measured:
    """What was done between each two of these moments."""
    if len(opened) < 2:
        raise BursarError("no whole period was seen: run for longer")
    edges = np.array(opened) // MILLISECOND_NS
    done = np.array(
        [np.histogram(list(each.done), edges, weights=list(each.done.values()))[0] for each in counts]
    )
    used = sum(each.processor_s for each in (*counts, *others)) / (seconds * (os.cpu_count() or 1))
    return Measured(done, used)


@contextmanager
def open_node() -> Iterator[CardNode]:
    with open_place() as place:
        card = NodeCard(place.root / "card")
        card.set_rate(RATE)
        try:
            yield CardNode(place, card)
        finally:
            card.close()


def measure_profile(node: CardNode, seconds: float) -> Profile:
    alone = node.run_bare([None], seconds).total()
    together = node.run_bare([None] * CLIENTS, seconds)
    totals = together.done.sum(axis=0)
    return Profile(alone, float(totals.mean()), float(totals.std(ddof=1)))
