"""What a server's journal rests on, taken out piece by piece."""

from __future__ import annotations

import msgspec

from bursar.rates.blocks import Blocks, Charged, Page, Past
from bursar.rates.controller import ControllerBook
from bursar.rates.messages import Report
from bursar.rates.server import ServerBook
from bursar.rates.views import ServerView
from bursar.sim.faults import Faults
from bursar.sim.scenarios.rate_restarts import (
    RestartingRateScenario,
    SmallRestart,
)
from bursar.world import MILLISECOND_NS

change = msgspec.structs.replace


class SpendsWhatIsNotDurable(Blocks):
    """A ceiling goes up as soon as its line is written, synced or not."""

    def _raise(self, index: int, level: int) -> int | None:
        self._page.durable = self._page.asked
        return super()._raise(index, level)


class ForgetsWhatWasStatedAhead(Past):
    """The first steps of a period are read as if nobody could have spent them."""

    def _charge(self, line: Charged) -> None:
        super()._charge(line)
        self.levels[line.period + 1] = {}


class ReadsNothingAhead(Blocks):
    def __init__(self, *args, **options) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*args, **options)
        self.past = ForgetsWhatWasStatedAhead()


class ResumesWhatItLikes(ServerBook):
    """A new life goes on with the newest period in its journal, whichever it is asked for."""

    def _resume(self, now: int, period: int, blocks: Blocks) -> None:
        super()._resume(now, max(blocks.past.levels, default=period), blocks)
        self.period = period


class CountsTwice(ControllerBook):
    """What a life held and what the next one says that it charged are moved as if they were two."""

    def _first_answer(self, now: int, view: ServerView) -> None:
        self._answered -= {(view.name, incarnation) for incarnation in view.report.lives}
        super()._first_answer(now, view)


class BelievesAnyHeir(ControllerBook):
    """A later life answers for every earlier one, whether that kept a journal or not."""

    def _hear(self, now: int, report: Report):  # type: ignore[no-untyped-def]
        if report.lives:
            report = change(report, lives=tuple(range(1, report.incarnation)))
        return super()._hear(now, report)


class ForgetsWhatItResumes(Blocks):
    """A new life answers for the last one, and holds nothing that it charged."""

    def _recall(self, period: int) -> Page:
        return Page(period, self._nothing())


OFTEN = Faults(crashes=6.0, outage_ns=30 * MILLISECOND_NS, disk_slow=0.9, slow_ns=3_000 * MILLISECOND_NS)

BUGS = {
    "spends what is not durable": SpendsWhatIsNotDurable,
    "forgets what was stated ahead": ReadsNothingAhead,
    "resumes what it likes": ResumesWhatItLikes,
    "counts twice": CountsTwice,
    "believes any heir": BelievesAnyHeir,
    "forgets what it resumes": ForgetsWhatItResumes,
}

WORLDS = {
    "spends what is not durable": SmallRestart,
    "forgets what it resumes": SmallRestart,
}
"""The small world in which a search finds it."""


def plant_scenario(bug: str) -> RestartingRateScenario:
    scenario = RestartingRateScenario()
    _plant(scenario, bug)
    return scenario


def plant_small_world(bug: str) -> SmallRestart:
    world = WORLDS[bug]()
    _plant(world, bug)
    return world


def _plant(world: RestartingRateScenario | SmallRestart, bug: str) -> None:
    part = BUGS[bug]
    if issubclass(part, Blocks):
        world.blocks = part
    elif issubclass(part, ServerBook):
        world.server_book = part
    else:
        world.controller_book = part
