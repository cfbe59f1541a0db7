"""When this server last lived, on disk: whether assignments of an earlier life may be in force."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bursar.errors import JournalError


class LifeMark:
    """A file whose time says when the server was last known to be assigning."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "envoy.alive"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise JournalError(f"{folder} cannot be used: {error.strerror}; set daemon.state") from error

    def touch(self) -> None:
        try:
            self._path.touch(mode=0o600)
            os.utime(self._path)
        except OSError as error:
            raise JournalError(f"{self._path} cannot be written: {error.strerror}") from error

    def has_run_out(self, after_s: float, keeps: bool) -> bool:
        """True if nothing that was assigned before can be in force: there was no earlier life, or
        it ended long enough ago (never, where Envoys keep what they have). A clock that went back
        leaves it open, and the answer is no."""
        try:
            age_s = time.time() - self._path.stat().st_mtime
        except FileNotFoundError:
            return True
        return not keeps and age_s > after_s
