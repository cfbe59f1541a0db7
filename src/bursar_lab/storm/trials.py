"""Planted bugs, each in storms of its kind until one finds it: what a storm is worth.

First the same storm without a bug, once for every kind that comes up: it must be right, or finding
something in the others says nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bursar_lab.storm.plan import Ability, Plan, draw_plan
from bursar_lab.storm.planted import Bug
from bursar_lab.storm.report import judge_all
from bursar_lab.storm.run import Storm, tidy

Tell = Callable[[str], None]
STORM_S = 90.0
STORE = "sqlite"
NODES = 3


@dataclass(frozen=True)
class Trial:
    """How it went with one bug; `wrong` is the first wrong line, "" if none was found in time."""

    bug: Bug
    seconds: float
    storms: int
    wrong: str


class Trials:
    def __init__(self, out: Path, ability: Ability, seed: int, minutes: float, tell: Tell) -> None:
        """At most `minutes` for a bug; the first storm has `seed`, the next one the next."""
        self._out = out
        self._ability = ability
        self._seed = seed
        self._most_s = minutes * 60
        self._tell = tell

    def run(self, bugs: Sequence[Bug]) -> list[Trial]:
        for kind in dict.fromkeys(bug.kind for bug in bugs):
            wrong = self._run_storm(self._draw(kind, self._seed, ""), "")
            self._tell(f"{kind}, seed {self._seed}, without a bug: {wrong or 'right'}")
        return [self._try(bug) for bug in bugs]

    def _try(self, bug: Bug) -> Trial:
        began, storms, wrong = time.monotonic(), 0, ""
        for plan in self._draw_plans(bug):
            storms += 1
            wrong = self._run_storm(plan, bug.promise)
            took_s = time.monotonic() - began
            self._tell(f"{bug.name}, seed {plan.seed}, {took_s:.0f} s: {wrong or 'nothing found'}")
            if wrong or took_s + STORM_S > self._most_s:
                break
        return Trial(bug, time.monotonic() - began, storms, wrong)

    def _draw_plans(self, bug: Bug) -> Iterator[Plan]:
        for seed in count(self._seed):
            plan = self._draw(bug.kind, seed, bug.name)
            if plan.tokens or not bug.rights:
                yield plan

    def _draw(self, kind: str, seed: int, planted: str) -> Plan:
        plan = draw_plan(kind, seed, STORM_S, STORE, NODES, "defaults", self._ability)
        plan.planted = planted
        return plan

    def _run_storm(self, plan: Plan, promise: str) -> str:
        """The first wrong line, of that promise alone if one is given, or "". What went wrong is kept."""
        folder = self._out / f"{plan.planted or plan.kind}-{plan.seed}"
        shutil.rmtree(folder, ignore_errors=True)
        storm = Storm(plan, folder.resolve(), f"bursar storm again {folder}", lambda line: None)
        storm.run()
        wrong = judge_all(folder, storm.missed)
        if not wrong:
            tidy(folder)
        return next((said for name, said in wrong if promise in ("", name)), "")


def write_table(trials: Sequence[Trial]) -> list[str]:
    """As Markdown."""
    rows = [
        f"| {t.bug.layer} | `{t.bug.name}` | {t.bug.kind} | {STORE} | {t.storms} | "
        f"{f'{t.seconds:.0f}' if t.wrong else 'not found'} | {t.wrong} |"
        for t in trials
    ]
    head = "| layer | bug | storm | store | storms | found after, s | first wrong line |"
    return [head, "|" + "---|" * 7, *rows]
