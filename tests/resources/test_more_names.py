"""A claim that asks for more, through each way in that can: here and at a daemon, awaited and not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.resources.places import POLICY, Caller, make_policy, open_way

import bursar

QUIET = """
[resource.quiet]
kind = "claim"
shadow = true
"""


async def more(caller: Caller, grant: Any, *names: str, wait: float = 0.0) -> None:
    await caller._do(grant.more, *names, wait=wait)


async def claim(caller: Caller, *names: str, resource: str = "claim") -> Any:
    acquisition = caller.b.resource(resource).claim(list(names), "acme", wait=1)
    return await caller._do(acquisition.take) if caller.sync else await acquisition


@pytest.mark.parametrize("way", ["embedded-async", "embedded-sync", "daemon-async", "daemon-sync"])
async def test_more_is_the_same_everywhere(way: str, tmp_path: Path) -> None:
    async with open_way(way, make_policy(tmp_path, POLICY + QUIET, claim="counted = { gpu = 2 }")) as caller:
        other = await claim(caller, "c:E")
        grant = await claim(caller, "a:E", "gpu:1")
        await more(caller, grant, "b:S", "gpu:1", wait=0.1)
        assert set(grant.fence) == {"a", "b"} and grant.amount == 3
        with pytest.raises(bursar.Refused, match="gpu are not free"):
            await more(caller, other, "gpu:1", wait=1)
        with pytest.raises(bursar.Refused, match="began earlier"):
            await more(caller, grant, "c:S", wait=5)
        with pytest.raises(bursar.UsageError, match="not counted"):
            await more(caller, other, "a:1")
        await caller.release(grant)
        await more(caller, other, "a:E", wait=5)
        await more(caller, other, "gpu:2")
        assert set(other.fence) == {"a", "c"}
        await caller.release(other)
        with pytest.raises(bursar.UsageError, match="released already"):
            await more(caller, other, "b:E")
        shadow = await claim(caller, "a:E", resource="quiet")
        await more(caller, shadow, "b:E")
        assert set(shadow.fence.values()) == {0}, "nobody's"
        with pytest.raises(bursar.UsageError, match="names are claimed from kind claim"):
            await more(caller, await caller.acquire("rate", 1), "a:E")
