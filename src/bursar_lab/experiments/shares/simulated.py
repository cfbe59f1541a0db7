"""Runs a workload in virtual time: the filter and the book of the live target, a model of the rest.

Modelled are the device (its rate, its I/O threads) and the streams (their windows); the sockets,
threads and disks of the real target cost no time here, so what is left is what the rules do.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from bursar.shares.book import TargetBook
from bursar.shares.filter import Filter
from bursar.shares.handout import Handout, Line, Lines, TenantTerms
from bursar.shares.target import FilterRules
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS
from bursar_lab.experiments.shares.real import Run
from bursar_lab.experiments.shares.workloads import Workload
from bursar_lab.storage.config import Config, Mode, Sample
from bursar_lab.storage.tenant import Burst, Stream


class StreamModel:
    """One stream: what it has outstanding, and when its bursts were due and done."""

    def __init__(self, tenant: str, stream: Stream) -> None:
        self.tenant = tenant
        self.stream = stream
        self.bursts: list[Burst] = []
        self._number = 0
        self._left = 0
        self._outstanding = 0

    def due_at(self) -> int | None:
        """When its next burst begins, if there is one."""
        if self._number >= self.stream.bursts:
            return None
        due_s = self.stream.start_s + self._number * self.stream.every_s
        return None if due_s >= self.stream.until_s else round(due_s * SECOND_NS)

    def begin(self) -> None:
        self._left = self.stream.burst_bytes // self.stream.io_bytes

    def next_request(self, now: int) -> bool:
        """Whether it sends another I/O now."""
        if self._left == 0 or self._outstanding >= self.stream.window:
            return False
        if now >= self.stream.until_s * SECOND_NS:
            self._left = 0
            return False
        self._left -= 1
        self._outstanding += 1
        return True

    def finish_request(self, now: int) -> bool:
        """One I/O is done; true if the burst is."""
        self._outstanding -= 1
        if now >= self.stream.until_s * SECOND_NS:
            self._left = 0
        if self._left or self._outstanding:
            return False
        due_s = self.stream.start_s + self._number * self.stream.every_s
        self.bursts.append(Burst(due_s, now / SECOND_NS, self.stream.burst_bytes))
        self._number += 1
        return True


class StorageModel:
    """The storage target in virtual time."""

    def __init__(self, workload: Workload, config: Config) -> None:
        self._config = config
        self._now = 0
        self._events: list[tuple[int, int, str, Any]] = []
        self._numbered = 0
        eager = config.eager and config.mode == "share"
        self._filter: Filter[StreamModel] = Filter(eager=eager)
        self._rules = FilterRules(self._filter)
        self._idle = config.threads
        self._free_at = 0
        self._served: dict[str, int] = {}
        self._book = self._open_book()
        self._wake_at: int | None = None
        self.samples: list[Sample] = []
        # One stream of each tenant after the other, as processes come up; not tenant by tenant.
        numbered = [
            (number, StreamModel(tenant, stream))
            for tenant, streams in workload.streams.items()
            for number, stream in enumerate(streams)
        ]
        self.streams = [model for _, model in sorted(numbered, key=lambda pair: pair[0])]

    def _open_book(self) -> TargetBook | None:
        config = self._config
        if config.mode == "static":
            total = sum(config.weights.values())
            lines = {
                name: Line(0, 0, 0, 0, 0, config.rate_bytes * weight // total, weight)
                for name, weight in config.weights.items()
            }
            self._rules.apply(Handout(0, 0, Lines.of(lines)), 0)
        if config.mode != "share":
            return None
        tenants = {name: TenantTerms(weight) for name, weight in config.weights.items()}
        return TargetBook(
            tenants,
            Rate.of(config.rate_bytes, "bytes"),
            config.interval_ms * MILLISECOND_NS,
            needed_first=config.needed_first,
        )

    def run(self, ends_ns: int) -> None:
        """Until every stream is done, or until `ends_ns`."""
        for stream in self.streams:
            self._schedule(stream)
        self._add(0, "sample", None)
        if self._book is not None:
            self._add(self._book.interval_ns, "interval", None)
        while self._events and self._events[0][0] <= ends_ns:
            self._now, _, kind, about = heappop(self._events)
            getattr(self, f"_on_{kind}")(about)
            self._dispatch()
            if all(event[2] in ("sample", "interval") for event in self._events) and not len(self._filter):
                break
        if self._now / SECOND_NS > self.samples[-1].at_s:
            self._on_sample(None)

    def _add(self, when: int, kind: str, about: Any) -> None:
        self._numbered += 1
        heappush(self._events, (when, self._numbered, kind, about))

    def _schedule(self, stream: StreamModel) -> None:
        due_at = stream.due_at()
        if due_at is not None:
            self._add(max(due_at, self._now), "burst", stream)

    def _on_burst(self, stream: StreamModel) -> None:
        stream.begin()
        self._submit(stream)

    def _submit(self, stream: StreamModel) -> None:
        while stream.next_request(self._now):
            self._filter.submit(stream.tenant, stream.stream.io_bytes, stream, self._now)

    def _on_done(self, stream: StreamModel) -> None:
        self._idle += 1
        size = stream.stream.io_bytes
        self._served[stream.tenant] = self._served.get(stream.tenant, 0) + size
        if stream.finish_request(self._now):
            self._schedule(stream)
        else:
            self._submit(stream)

    def _on_interval(self, _: None) -> None:
        assert self._book is not None, "only a book has intervals"
        self._rules.apply(self._book.close(self._filter.collect()), self._now)
        self._add(self._now + self._book.interval_ns, "interval", None)

    def _on_wake(self, _: None) -> None:
        self._wake_at = None

    def _on_sample(self, _: None) -> None:
        lines = self._book.handout.lines if self._book else {}
        self.samples.append(
            Sample(
                self._now / SECOND_NS,
                dict(self._served),
                {name: line.demand for name, line in lines.items()},
                {name: line.final for name, line in lines.items()},
                self._book.records() if self._book else {},
            )
        )
        self._add(self._now + self._config.sample_ms * MILLISECOND_NS, "sample", None)

    def _dispatch(self) -> None:
        """Give idle threads what may go."""
        while self._idle:
            request = self._filter.take(self._now)
            if request is None:
                break
            self._idle -= 1
            busy_ns = request.cost * SECOND_NS // self._config.rate_bytes
            self._free_at = max(self._free_at, self._now) + busy_ns
            self._add(self._free_at, "done", request.item)
        next_at = self._filter.next_at()
        if self._idle and next_at is not None and (self._wake_at is None or next_at < self._wake_at):
            self._wake_at = max(next_at, self._now + 1)
            self._add(self._wake_at, "wake", None)


def run_simulated(workload: Workload, mode: Mode, **options: bool | int) -> Run:
    """One run of a workload in one mode, in virtual time."""
    config = Config(
        socket="-",
        directory="-",
        report="-",
        rate_bytes=workload.rate_bytes,
        weights=workload.weights,
        mode=mode,
        **options,  # type: ignore[arg-type]
    )
    model = StorageModel(workload, config)
    model.run(round((workload.ends_s + 60) * SECOND_NS))
    bursts: dict[str, list[list[Burst]]] = {name: [] for name in workload.streams}
    for stream in model.streams:
        bursts[stream.tenant].append(stream.bursts)
    return Run(mode, model.samples, bursts, config)
