"""The task that is being done: what its function can ask and say, wherever in its calls it is."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from bursar.claims.tracker import NOTE_MAX
from bursar.errors import StoppedError, UsageError


@dataclass(eq=False)
class CurrentTask:
    """One attempt.

    id       the task's; also the idempotency key: the same in every attempt
    attempt  1 for the first
    fence    of each name that it holds
    stopping why it is to stop: it was cancelled, took too long, or lost its names; None while it is not
    note     how far it is, as `bursar tasks` shows it
    """

    id: str
    tenant: str
    attempt: int
    fence: Mapping[str, int]
    stopping: str | None = None
    note: str = ""
    _asked: threading.Event = field(default_factory=threading.Event)

    @property
    def key(self) -> str:
        return self.id

    def progress(self, share: float | None = None, text: str = "") -> None:
        """Say how far it is (0.4 is 40 %), for others to see within a second or two."""
        said = text if share is None else f"{share:.0%} {text}".strip()
        self.note = said[:NOTE_MAX]

    def check(self) -> None:
        """Raises StoppedError if it is to stop: for a loop in a thread or a process, which nobody can stop
        gently from outside."""
        if self.stopping is not None:
            raise StoppedError(self.stopping)

    def sleep(self, seconds: float) -> None:
        """Like `time.sleep`, in a thread or a process; raises StoppedError as soon as it is to stop."""
        self._asked.wait(seconds)
        self.check()

    def ask(self, why: str) -> None:
        """Tell it to stop. From any thread."""
        if self.stopping is None:
            self.stopping = why
            self._asked.set()


_current: ContextVar[CurrentTask] = ContextVar("bursar.current_task")


def current_task() -> CurrentTask:
    """The task whose function this is called from. Raises UsageError anywhere else."""
    try:
        return _current.get()
    except LookupError:
        raise UsageError("no task is being done here: call it from a function under @b.task") from None


def enter(task: CurrentTask) -> None:
    """From here on, in this context, that is the task which is being done."""
    _current.set(task)
