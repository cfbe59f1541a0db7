"""docs/share.md: its policy is one, its program does what the page says, its configurations are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bursar.integrations.blkio.__main__ import Config as BlkioConfig
from bursar.integrations.lustre.__main__ import Config as LustreConfig

PAGE = (Path(__file__).parents[2] / "docs" / "share.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


async def test_the_program_of_the_page_shares_by_weight(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    [policy], [program] = blocks("toml"), blocks("python")
    (tmp_path / "policy.toml").write_text(policy)
    names: dict[str, Any] = {}
    exec(program, names)
    batch, web = await names["main"]("policy.toml")
    printed = capsys.readouterr().out
    # Three to one, as far as a busy machine lets them ask for it within two seconds.
    assert 1.7 < web / batch < 4, printed
    assert batch + web == pytest.approx(4000, rel=0.2)
    assert "batch alone" in printed and "tokens" in printed


def test_the_configurations_of_the_page_are_read():
    blkio, lustre = blocks("json")
    assert set(msgspec.json.decode(blkio, type=BlkioConfig).tenants) == {"batch", "web"}
    assert set(msgspec.json.decode(lustre, type=LustreConfig).tenants) == {"dd.500", "*"}
