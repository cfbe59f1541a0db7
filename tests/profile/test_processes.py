"""The processes of a measurement: none is waited for without an end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bursar.errors import BursarError
from bursar.profile import processes as profiled
from bursar.profile.measures import count_reads


def test_a_process_that_does_not_start_or_is_never_ready_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(profiled, "RECORDS", 8)
    with profiled.open_processes() as processes:
        processes.records.unlink()
        with pytest.raises(BursarError, match="did not start"):
            count_reads(processes, 1, 0.1)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    monkeypatch.setattr(profiled, "READY_S", 0.5)
    monkeypatch.setattr(sys, "executable", str(slow))
    with profiled.open_processes() as processes, pytest.raises(BursarError, match="was not ready"):
        count_reads(processes, 1, 0.1)
