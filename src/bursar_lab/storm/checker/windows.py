"""The fullest stretches among many operations, of lengths from a second to the whole run.

A token was handed out at some moment between the asking and the answer, so only operations that lie
whole within a stretch surely count towards it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from bursar_lab.storm.checker.grants import Grant


@dataclass(frozen=True)
class Fullest:
    since: int
    until: int
    tokens: int
    grants: list[Grant]


def find_fullest(grants: Sequence[Grant], length_ns: int, steps: int = 10) -> Fullest:
    """Of the stretches of this length that begin at multiples of a `steps`th of it, the fullest."""
    step_ns = max(1, length_ns // steps)
    origin = min(grant.at for grant in grants) - length_ns
    starts = (max(grant.at for grant in grants) - origin) // step_ns + 2
    steps_up = [0] * (starts + 1)
    for grant in grants:
        first = max(0, -((origin + length_ns - grant.end) // step_ns))  # rounded up: its end is within
        last = (grant.at - origin) // step_ns
        if first <= last:
            steps_up[first] += grant.used
            steps_up[last + 1] -= grant.used
    sums = list(accumulate(steps_up))
    best = max(range(len(sums)), key=sums.__getitem__)
    since = origin + best * step_ns
    until = since + length_ns
    within = [grant for grant in grants if since <= grant.at and grant.end <= until]
    return Fullest(since, until, sums[best], within)


def list_lengths(grants: Sequence[Grant], least_ns: int) -> Iterator[int]:
    """From `least_ns`, doubled until all of them fit: a lasting excess shows in one of these."""
    whole_ns = max(grant.end for grant in grants) - min(grant.at for grant in grants)
    length_ns = least_ns
    yield length_ns
    while length_ns < whole_ns:
        length_ns *= 2
        yield length_ns
