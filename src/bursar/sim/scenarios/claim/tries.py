"""Tasks that fail and are tried again, or are cancelled while they run: what befalls them, what must hold.

- A task fails, in the record, at most as often as somebody saw it fail, and is tried no more than `retries`
  times after that: then it is given up. What fails fewer times than that ends well.
- A task whose cancel was asked for is not begun any more, once those who have tasks done can know of it.
- When all is over there is no request left.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bursar.claims.model import Task
from bursar.claims.tracker import Dispatch
from bursar.sim.scenario import require
from bursar.world import SECOND_NS, Random

RETRIES = (0, 0, 3)
BACKOFFS_S = (0.0, 0.5, 1.0)
FAILING = (0, 0, 0, 1, 2, 99)
"""How often the work of a task fails before it ends well."""

STUBBORN = 0.5
HEARD_NS = 3 * SECOND_NS
"""Once all is well again, everybody has heard of every request by then."""


class WorkError(Exception):
    """How work fails here."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What was asked for, and how often it is to fail. A stubborn one fails when it is told to stop."""

    retries: int
    backoff_s: float
    failing: int
    stubborn: bool


PART = Fate(retries=0, backoff_s=0.0, failing=0, stubborn=False)
"""Of a subtask, which is cancelled with its parent."""

LATE = Fate(retries=3, backoff_s=1.0, failing=99, stubborn=True)
"""Of a task that is cancelled once all is well again: it would be begun three times more."""


class Tries:
    """By task."""

    def __init__(self, attempts_max: int, healed_ns: int) -> None:
        self._attempts_max = attempts_max
        self._healed_ns = healed_ns
        self._fates: dict[str, Fate] = {}
        self._failed: dict[str, dict[int, None]] = {}
        self._asked: dict[str, int] = {}
        self._heard: dict[str, None] = {}
        self.retried = 0

    def draw(self, draw: random.Random | Random) -> Fate:
        return Fate(
            draw.choice(RETRIES), draw.choice(BACKOFFS_S), draw.choice(FAILING), draw.random() < STUBBORN
        )

    def submitted(self, id: str, fate: Fate) -> None:
        self._fates.setdefault(id, fate)

    def asked(self, id: str, now_ns: int) -> None:
        """Somebody cancels it."""
        self._asked.setdefault(id, now_ns)

    def heard(self, id: str) -> None:
        """The cancel was answered: it runs, and is asked to stop."""
        self._heard[id] = None

    def begin(self, dispatch: Dispatch, now_ns: int) -> str | None:
        """An attempt is begun; what is wrong with that. (Work that raises only fails.)"""
        asked_ns = self._asked[dispatch.id] if dispatch.id in self._heard else None
        since_ns = None if asked_ns is None else now_ns - max(asked_ns, self._healed_ns)
        late = since_ns is not None and since_ns > HEARD_NS
        return f"{dispatch.id} is begun anew, and was cancelled long before" if late else None

    def stop(self, dispatch: Dispatch) -> None:
        """Raises WorkError if that is what this one does when it is told to stop."""
        fate = self._fates.get(dispatch.id)
        if fate is not None and fate.stubborn:
            self._failed.setdefault(dispatch.id, {})[dispatch.attempt] = None
            raise WorkError(f"attempt {dispatch.attempt} was told to stop")

    def fail(self, dispatch: Dispatch) -> None:
        """This attempt fails in another way."""
        self._failed.setdefault(dispatch.id, {})[dispatch.attempt] = None

    def end(self, dispatch: Dispatch) -> None:
        """Raises WorkError if this attempt is to fail."""
        fate = self._fates.get(dispatch.id)
        failed = self._failed.setdefault(dispatch.id, {})
        if fate is not None and len(failed) < fate.failing:
            failed[dispatch.attempt] = None
            self.retried += 1
            raise WorkError(f"attempt {dispatch.attempt}")

    def check_end(self, task: Task) -> None:
        """Of a task that is over."""
        fate, failed = PART if task.parent else self._fates[task.id], self._failed.get(task.id, {})
        require(
            task.failures <= len(failed), f"{task.id} failed {task.failures} times, and its work {failed}"
        )
        require(task.failures <= fate.retries, f"{task.id} was tried again {task.failures} times")
        if task.outcome == "dead":
            deaths = task.attempt - task.failures
            is_worn = task.failures == fate.retries and len(failed) > task.failures
            require(
                is_worn or deaths % self._attempts_max == 0,
                f"{task.id} was given up after {task.failures} failures and {deaths} deaths",
            )
        if task.outcome == "failed" and b"WorkError" in task.result:
            require(fate.retries == 0, f"{task.id} failed with {fate.retries} retries, and was not given up")
        if task.outcome == "cancelled" and task.attempt:
            require(
                task.id in self._asked or task.parent in self._asked,
                f"{task.id} was cancelled while it ran, and nobody asked for that",
            )

    def check_requests(self, left: Sequence[str]) -> None:
        require(not left, f"these requests to cancel outlived their tasks: {left}")
