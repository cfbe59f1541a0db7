"""A state directory that cannot be written says so, and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bursar.errors import JournalError
from bursar.runtime.state import StateDirectory


def test_a_full_disk_at_the_start_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = StateDirectory(tmp_path)
    state.begin_life()

    def fail(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        with pytest.raises(JournalError, match="No space left on device; free or repair"):
            state.begin_life()
    assert state.begin_life() == 2, "the life that could not be written down did not count"
    state.close()
