"""Numbers out of runs: bandwidths, burst times, how fast the rest takes over."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from bursar_lab.experiments.shares.real import Run
from bursar_lab.experiments.shares.workloads import MIB

Series = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Check:
    """One claim, what was seen, and whether it holds."""

    claim: str
    seen: str
    holds: bool


def tenants_of(run: Run) -> list[str]:
    return sorted(run.bursts)


def bandwidths(run: Run, parts: int = 1) -> tuple[list[float], Series]:
    """MiB/s of each tenant between samples, `parts` of them taken together."""
    samples = [sample for sample in run.samples if sample.at_s >= 0][::parts]
    times = [after.at_s for _, after in pairwise(samples)]
    series: Series = {name: [] for name in tenants_of(run)}
    for before, after in pairwise(samples):
        span = max(1e-9, after.at_s - before.at_s)
        for name, values in series.items():
            served = after.served.get(name, 0) - before.served.get(name, 0)
            values.append(served / span / MIB)
    return times, series


def mean_bandwidths(run: Run, first_s: float, last_s: float) -> dict[str, float]:
    """MiB/s of each tenant over a span of time."""
    inside = [sample for sample in run.samples if first_s <= sample.at_s <= last_s]
    if len(inside) < 2:
        raise ValueError(f"no samples between {first_s:.2f} and {last_s:.2f} s")
    first, last = inside[0], inside[-1]
    span = (last.at_s - first.at_s) * MIB
    return {name: (last.served.get(name, 0) - first.served.get(name, 0)) / span for name in tenants_of(run)}


def finished_s(run: Run, tenant: str) -> float:
    """When its last stream was done."""
    return max(burst.done_s for stream in run.bursts[tenant] for burst in stream)


def achieved(run: Run) -> dict[str, float]:
    """MiB/s of each tenant until it was done, and of all until the last was."""
    done = {
        name: sum(burst.done_bytes for stream in run.bursts[name] for burst in stream) / MIB
        for name in tenants_of(run)
    }
    result = {name: size / finished_s(run, name) for name, size in done.items()}
    result["all"] = sum(done.values()) / max(finished_s(run, name) for name in tenants_of(run))
    return result


def served(run: Run, until_s: float) -> dict[str, float]:
    """MiB/s of each tenant and of all, from the beginning to `until_s`."""
    means = mean_bandwidths(run, 0.0, until_s)
    return {**means, "all": sum(means.values())}


def burst_times(run: Run, tenant: str) -> list[float]:
    """Seconds from when each burst was due until its last stream was done with it. A burst that
    was not done when the run ended counts up to that moment: it took at least that long."""
    streams = [stream for stream in run.bursts[tenant] if stream]
    by_due: dict[float, float] = {}
    for stream in streams:
        for burst in stream:
            by_due[burst.due_s] = max(by_due.get(burst.due_s, 0.0), burst.done_s)
    return [done - due for due, done in sorted(by_due.items())]


def mean_burst(run: Run, tenant: str) -> float:
    return fmean(burst_times(run, tenant))


def takeover_intervals(run: Run, finisher: str) -> int | None:
    """Intervals from a tenant's end until those who are left have all the tokens, each within
    10 % of its weight's part; None if that never happened."""
    ended = finished_s(run, finisher)
    left = [name for name in tenants_of(run) if finished_s(run, name) > ended]
    weights = {name: run.config.weights[name] for name in left}
    after = 0
    last: dict[str, int] = {}
    for sample in run.samples:
        if sample.at_s <= ended or sample.tokens == last:
            last = sample.tokens
            continue
        after, last = after + 1, sample.tokens
        total = sum(sample.tokens.values())
        parts = {name: weights[name] / sum(weights.values()) for name in left}
        if total and all(
            abs(sample.tokens.get(name, 0) / total - part) <= 0.1 * part for name, part in parts.items()
        ):
            return after
    return None


def share_error(means: dict[str, float], weights: dict[str, int]) -> float:
    """The largest part by which a tenant's bandwidth is off its weight's part."""
    total, whole = sum(means.values()), sum(weights.values())
    return max(abs(means[name] / total / (weight / whole) - 1) for name, weight in weights.items())
