"""Seconds of what `bursar experiment fuzz-envoy` and `fuzz-memcached` do for ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bursar_lab.experiments import fuzzing


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "QUICK_S", 2.0)


def test_the_quota_service_outlives_hostile_input(tmp_path: Path) -> None:
    found = fuzzing.envoy(tmp_path, True)
    assert found["ok"] and found["decent requests answered"] >= 1, found


@pytest.mark.needs("memcached")
def test_the_memcached_proxy_outlives_hostile_input(tmp_path: Path) -> None:
    found = fuzzing.memcached(tmp_path, True)
    assert found["ok"] and found["decent requests answered"] >= 1, found


def test_a_process_that_dies_is_reported(tmp_path: Path) -> None:
    import asyncio
    import random

    from bursar.errors import BursarError
    from bursar_lab.processes import Process

    process = Process(["sleep", "60"], tmp_path / "log")

    async def kill(rng: random.Random) -> None:
        process.kill()

    async def check() -> None: ...

    with pytest.raises(BursarError, match="it died of kill, input 1 of seed"):
        asyncio.run(fuzzing.bombard(process, {"kill": kill}, check, 5.0))
