"""What docs/rate.md shows is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bursar.policy import parse
from bursar.rates.resource import open_server
from bursar.runtime.client import connect

PAGE = (Path(__file__).parents[2] / "docs" / "rate.md").read_text()
POLICIES = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


def test_every_policy_of_the_page_is_one() -> None:
    assert len(POLICIES) == 3
    for text in POLICIES:
        assert parse(text).resource("cache").kind == "rate"


async def test_the_example_runs_and_both_get_what_the_page_says(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text(POLICIES[0])
    names: dict[str, Any] = {}
    exec(PROGRAMS[0], names)
    steady, greedy = await names["main"]("policy.toml")
    # Two seconds touch up to five periods of half a second; the limit holds in each.
    assert greedy <= 5 * 225
    assert steady >= 0.8 * 600
    printed = capsys.readouterr().out
    assert "greedy has a reservation of 0 and a limit of 225 tokens every 0.5 s." in printed


async def test_a_front_door_to_one_server_is_opened_as_the_page_says(
    tmp_path: Path, monkeypatch: Any
) -> None:
    assert '(await open_server(cache, "a")).acquire("acme", wait=0.2)' in PAGE
    monkeypatch.chdir(tmp_path)
    async with await connect(parse(POLICIES[0])) as b:
        cache = b.resource("cache")
        async with (await open_server(cache, "a")).acquire("steady", wait=5) as grant:
            assert grant.period
        part = (await cache.statistics()).part
        assert part.servers["b"].tenants["steady"].dispatched == 0
