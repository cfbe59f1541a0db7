"""The load of sections IV-D to IV-F, scaled to a device of this size.

The paper's target is an SSD of about 500 MB/s, its files 1 GB, 16 a tenant. Here the device is
paced to `RATE_BYTES`, and each experiment's sizes and times are divided as said beside it. What is
compared (shares, burst times, totals) depends on ratios that are kept: weights, streams a tenant,
outstanding I/Os a stream, burst sizes over the device's rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from bursar_lab.storage.tenant import Stream

MIB = 1024 * 1024
RATE_BYTES = 200 * MIB
ENDLESS_BYTES = 2**50


@dataclass(frozen=True, slots=True)
class Workload:
    """Tenants with weights and streams; `ends_s` ends what has no end of its own."""

    name: str
    weights: dict[str, int]
    streams: dict[str, list[Stream]]
    ends_s: float
    rate_bytes: int = RATE_BYTES


def make_allocation(size_mib: int) -> Workload:
    """IV-D: four tenants with 16 streams each and the same volume, priorities 10:10:30:50. The
    paper's 1 GB files are `size_mib` here."""
    weights = {"job1": 10, "job2": 10, "job3": 30, "job4": 50}
    streams = {name: [Stream(burst_bytes=size_mib * MIB)] * 16 for name in weights}
    return Workload("allocation", weights, streams, 600.0)


BURSTS = {"job1": (64, 2.0), "job2": (96, 3.0), "job3": (128, 5.0)}
"""IV-E: MiB a burst, seconds between bursts."""


def make_redistribution(bursts: int, scale: float = 1.0) -> Workload:
    """IV-E: three tenants of priority 30 with bursts on two streams, one of priority 10 with 16
    continuous streams until all have had at least `bursts`. `scale` divides sizes and times."""
    ends_s = bursts * max(every for _, every in BURSTS.values()) / scale
    streams = {
        name: [
            Stream(
                burst_bytes=round(size / 2 / scale) * MIB,
                bursts=int(ends_s / (every / scale)),
                every_s=every / scale,
                until_s=ends_s,
            )
        ]
        * 2
        for name, (size, every) in BURSTS.items()
    }
    streams["job4"] = [Stream(burst_bytes=ENDLESS_BYTES, until_s=ends_s)] * 16
    return Workload("redistribution", {"job1": 30, "job2": 30, "job3": 30, "job4": 10}, streams, ends_s)


SMALL_BURSTS = {"job1": (16, 2.0, 20.0), "job2": (12, 3.0, 50.0), "job3": (8, 4.0, 80.0)}
"""IV-F: MiB a burst, seconds between bursts, delay of the continuous stream."""


def make_recompensation(scale: float) -> Workload:
    """IV-F: four tenants of equal priority. Three begin with small bursts and each starts a
    continuous stream after 20, 50 and 80 s, divided by `scale`; the fourth has 16 continuous
    streams throughout. It ends at 120 s, divided likewise."""
    ends_s = 120.0 / scale
    streams = {}
    for name, (size, every, delay) in SMALL_BURSTS.items():
        bursts = Stream(
            burst_bytes=max(MIB, round(size / scale) * MIB),
            bursts=int(120.0 / every),
            every_s=every / scale,
            until_s=ends_s,
        )
        steady = Stream(burst_bytes=ENDLESS_BYTES, start_s=delay / scale, until_s=ends_s, window=16)
        streams[name] = [bursts, steady]
    streams["job4"] = [Stream(burst_bytes=ENDLESS_BYTES, until_s=ends_s)] * 16
    return Workload("recompensation", dict.fromkeys(streams, 25), streams, ends_s)
