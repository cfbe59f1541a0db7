"""Seconds of what `bursar fuzz live-envoy live-memcached` does for minutes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from bursar.errors import BursarError
from bursar_lab.fuzzing import live
from bursar_lab.processes import Process


def make_course(name: str, told: list[str]) -> live.Course:
    return live.Course(name, seconds=2.0, seed=20_261, tell=told.append)


def test_the_quota_service_outlives_hostile_input(tmp_path: Path) -> None:
    told: list[str] = []
    found = live.run(make_course("live-envoy", told), tmp_path)
    assert not found.faults and found.inputs and told, found


@pytest.mark.needs("memcached")
def test_the_memcached_proxy_outlives_hostile_input(tmp_path: Path) -> None:
    told: list[str] = []
    found = live.run(make_course("live-memcached", told), tmp_path)
    assert not found.faults and found.inputs and told, found


def test_a_process_that_dies_is_reported(tmp_path: Path) -> None:
    process = Process(["sleep", "60"], tmp_path / "log")

    async def kill(rng: random.Random) -> None:
        process.kill()

    async def check() -> None: ...

    with pytest.raises(BursarError, match="it died of kill, input 1 of seed"):
        asyncio.run(live.bombard(process, {"kill": kill}, check, make_course("live-envoy", [])))
