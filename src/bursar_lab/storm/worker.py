"""Whoever does the tasks: `bursar work`, started again when it ends, as a supervisor would."""

from __future__ import annotations

import threading
from pathlib import Path

from bursar_lab.processes import Process
from bursar_lab.storm.history import History, now_ns


class Worker:
    """Killed and healed by one thread, tended by another: the lock keeps it one process."""

    def __init__(self, command: list[str], log: Path, history: History) -> None:
        self._command = command
        self._log = log
        self._history = history
        self._wanted = True
        self._lock = threading.RLock()
        self._process = Process(command, log)

    def kill(self) -> None:
        with self._lock:
            self._wanted = False
            self._process.kill()

    def restart(self) -> None:
        with self._lock:
            self._wanted = True
            if not self._process.running:
                self._process = Process(self._command, self._log)

    def tend(self) -> None:
        with self._lock:
            if self._wanted and not self._process.running:
                code = self._process.child.returncode
                self._history.write("note", at=now_ns(), what="exit", node="worker", code=code)
                self.restart()

    def stop(self) -> None:
        with self._lock:
            self._wanted = False
            self._process.stop()
