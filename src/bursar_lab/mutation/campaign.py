"""Mutants drawn by a seed over the rooms, tried one after the other."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bursar_lab.mutation.operators import Mutant, find_mutants
from bursar_lab.mutation.report import Report
from bursar_lab.mutation.trials import Copy, Room, Trial

Tell = Callable[[str], None]


class Campaign:
    """Tries mutants in a copy; what came of them so far is in `report`, and `keep` is called with it."""

    def __init__(self, copy: Copy, rooms: Sequence[Room], tell: Tell, keep: Callable[[Report], None]) -> None:
        self._copy = copy
        self._rooms = {room.name: room for room in rooms}
        self._tell = tell
        self._keep = keep

    def draw(self, seed: int, count: int, before: Sequence[Trial] = ()) -> Report:
        """A sample of all mutants that these rooms have, each as likely as any other. What was tried
        `before` is not tried again."""
        found = [(room.name, mutant) for room in self._rooms.values() for mutant in self._find(room)]
        possible = dict.fromkeys(self._rooms, 0)
        for name, _ in found:
            possible[name] += 1
        chosen = random.Random(seed).sample(found, min(count, len(found)))
        known = {(trial.room, trial.mutant): trial for trial in before}
        report = Report(seed, possible, [known[each] for each in chosen if each in known])
        for trial in self._try_all([each for each in chosen if each not in known]):
            report.trials.append(trial)
            self._keep(report)
        return report

    def try_survivors(self, report: Report) -> Report:
        """Those of an earlier report, again: the tests may have changed since, the source may not."""
        places = [
            place
            for place, trial in enumerate(report.trials)
            if not trial.killed_by and trial.room in self._rooms
        ]
        chosen = [(report.trials[place].room, report.trials[place].mutant) for place in places]
        for place, trial in zip(places, self._try_all(chosen), strict=True):
            report.trials[place] = trial
            self._keep(report)
        return report

    def _find(self, room: Room) -> list[Mutant]:
        return [mutant for path in room.sources for mutant in find_mutants(path, self._copy.read(path))]

    def _try_all(self, chosen: Sequence[tuple[str, Mutant]]) -> Iterator[Trial]:
        for name in dict.fromkeys(name for name, _ in chosen):
            self._tell(f"{name}: {self._copy.measure(self._rooms[name]):.0f} s without a mutant")
        began = time.monotonic()
        for number, (name, mutant) in enumerate(chosen, start=1):
            trial = self._copy.try_mutant(self._rooms[name], mutant)
            left_s = (time.monotonic() - began) / number * (len(chosen) - number)
            how = f"killed by {trial.killed_by}" if trial.killed_by else "SURVIVED"
            self._tell(
                f"{number}/{len(chosen)}, {left_s / 60:.0f} min left: "
                f"{mutant.path}:{mutant.line} {mutant.what}: {how} ({trial.seconds:.0f} s)"
            )
            yield trial


def find_root() -> Path:
    """The clone that this was installed from."""
    return Path(__file__).parents[3]
