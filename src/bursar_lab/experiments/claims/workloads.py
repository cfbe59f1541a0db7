"""The benchmarks of chapter 5: tasks packed into rectangles, and tasks on a tree of resources."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bursar.claims.requirements import Mode, Requirement, Requirements


@dataclass(frozen=True, slots=True)
class Job:
    """One task of a benchmark: when it is released, how long it runs (seconds), what it needs."""

    released: float
    duration: int
    needs: Requirements


def draw_rectangles(
    seed: int, rectangles: int, *, resources: int = 100, longest: int = 20
) -> tuple[list[Job], int]:
    """Section 5.2.1: every resource is in use at every moment of the optimal schedule. Returns the
    tasks, in the order in which they are released, and the length of that schedule."""
    chance = random.Random(f"rectangles/{rectangles}/{seed}")
    jobs: list[Job] = []
    begin = 0
    for _ in range(rectangles):
        edge = _fill_edge(chance, 0, resources, longest, resources)
        length = max(duration for _, _, duration in edge)
        cells = [(start, width, 0, duration) for start, width, duration in edge]
        for start, width, at, duration in _fill_rest(chance, cells, length, longest, resources):
            starts = begin + at
            released = chance.uniform(0, starts) if starts else 0.0
            needs = tuple(Requirement(f"r{name:03d}", Mode.EXCLUSIVE) for name in range(start, start + width))
            jobs.append(Job(released, duration, needs))
        begin += length
    chance.shuffle(jobs)
    jobs.sort(key=lambda job: job.released)
    return jobs, begin


Cell = tuple[int, int, int, int]
"""(first resource, how many, begin, duration)"""


def _fill_edge(
    chance: random.Random, start: int, width: int, longest: int, widest: int
) -> list[tuple[int, int, int]]:
    edge = []
    while width:
        taken = min(width, chance.randint(1, widest))
        edge.append((start, taken, chance.randint(1, longest)))
        start += taken
        width -= taken
    return edge


def _fill_rest(
    chance: random.Random, cells: list[Cell], length: int, longest: int, widest: int
) -> list[Cell]:
    """The tasks of the edge, and those that fill the rectangle behind them."""
    done: list[Cell] = []
    while cells:
        start, width, at, duration = cells.pop(0)
        done.append((start, width, at, duration))
        end = at + duration
        if end < length:
            for first, taken, runs in _fill_edge(chance, start, width, longest, widest):
                cells.append((first, taken, end, min(runs, length - end)))
    return done


def draw_hierarchy(
    seed: int, tasks: int, *, levels: int = 4, branching: int = 10, most: int = 5, longest: int = 20
) -> list[Job]:
    """Section 5.3.1: each task takes some resources of a tree exclusively and what is above them
    shared. Names sort in the order of the tree's indexes."""
    chance = random.Random(f"hierarchy/{tasks}/{seed}")
    total = sum(branching**level for level in range(levels))
    jobs = []
    for _ in range(tasks):
        modes: dict[int, Mode] = {}
        chosen = {chance.randrange(1, total) for _ in range(chance.randint(1, most))}
        for index in sorted(chosen):
            for above in _ancestors(index, branching):
                modes.setdefault(above, Mode.SHARED)
        modes.update(dict.fromkeys(sorted(chosen), Mode.EXCLUSIVE))
        needs = tuple(Requirement(f"r{index:05d}", modes[index]) for index in sorted(modes))
        jobs.append(Job(0.0, chance.randint(1, longest), needs))
    return jobs


def _ancestors(index: int, branching: int) -> list[int]:
    above = []
    while index > 0:
        index = (index - 1) // branching
        above.append(index)
    return above


def draw_shared(tasks: int, resources: int, duration: int = 10) -> list[Job]:
    """Section 5.4.1: all tasks share all resources."""
    return draw_alike(tasks, resources, Mode.SHARED, duration)


def draw_alike(tasks: int, resources: int, mode: Mode, duration: int = 10) -> list[Job]:
    """Every task needs all resources, in the same mode."""
    needs = tuple(Requirement(f"r{name:03d}", mode) for name in range(resources))
    return [Job(0.0, duration, needs) for _ in range(tasks)]
