"""The contract of the front door, line by line: five kinds, here, through a daemon and over HTTP,
async and sync, at default settings. (`test_breaches.py` breaks each line once, and sees that it is caught
here.)"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.resources import lines
from tests.resources.places import KINDS, POLICY, WAYS, Caller, make_policy, open_way


@pytest.fixture(params=WAYS)
async def caller(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Caller]:
    async with open_way(request.param, make_policy(tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize("line", lines.LINES, ids=lambda line: line.__name__)
async def test_every_kind_keeps(line: Any, caller: Caller) -> None:
    await line(caller)


@pytest.mark.parametrize("way", WAYS)
async def test_shadow_lets_everybody_go_and_counts(way: str, tmp_path: Path) -> None:
    policy = make_policy(tmp_path, **dict.fromkeys(KINDS, "shadow = true"))
    async with open_way(way, policy) as caller:
        await lines.shadow_lets_everybody_go_and_counts(caller)


@pytest.mark.parametrize("way", WAYS)
async def test_use_beyond_what_was_held_follows_the_policy(way: str, tmp_path: Path) -> None:
    text = POLICY.replace("acme = { limit = 1000 }", "acme = { limit = 1000, overdraft = 50 }")
    over = dict.fromkeys(("quota", "fast"), 'over = "overdraft"')
    async with open_way(way, make_policy(tmp_path, text, **over)) as caller:
        await lines.use_beyond_what_was_held_follows_the_policy(caller)
