"""docs/share.md: its policy is one, its program does what the page says, its configurations are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bursar.policy.reading import load

PAGE = (Path(__file__).parents[2] / "docs" / "share.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


async def test_the_program_of_the_page_shares_by_weight(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    policy, program = blocks("toml")[0], blocks("python")[0]
    (tmp_path / "policy.toml").write_text(policy)
    names: dict[str, Any] = {}
    exec(program, names)
    batch, web = await names["main"]("policy.toml")
    printed = capsys.readouterr().out
    # Three to one, as far as a busy machine lets them ask for it within two seconds. How much of what the
    # target has they ask for is the machine's business; more than that nobody is given.
    assert 1.7 < web / batch < 4, printed
    assert 400 < batch + web < 4800, printed
    assert "batch alone" in printed and "tokens" in printed


@pytest.mark.parametrize("block", [1, 2])
def test_the_enforced_shares_of_the_page_are_policies(block, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(blocks("toml")[block])
    [share] = load(path).resources.values()
    assert share.enforce in ("blkio", "lustre") and share.templates
