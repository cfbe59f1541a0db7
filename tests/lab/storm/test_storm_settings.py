"""Settings are drawn from the policy's own schema, and every key of it is known here."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import bursar
from bursar_lab.storm.policies import KINDS, draw_text
from bursar_lab.storm.settings import draw_settings, list_keys, list_unknown


def test_every_key_of_the_schema_is_drawn_or_left_out_by_name() -> None:
    assert list_unknown() == []


@pytest.mark.parametrize("kind", [*KINDS, "all"])
def test_what_is_drawn_is_a_policy(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    for seed in range(30):
        rng = random.Random(seed)
        text = draw_text(rng, kind, ["a", "b"], draw_settings(rng, kind), 120)
        file.write_text('store = "sqlite:///nowhere.db"\n' + text.replace("@words@", "127.0.0.1:1"))
        assert set(bursar.load_policy(file).resources), seed


def test_settings_differ_between_seeds_and_not_within_one() -> None:
    drawn = [draw_settings(random.Random(seed), "rate") for seed in range(10)]
    assert drawn[3] == draw_settings(random.Random(3), "rate")
    assert len({str(terms) for terms in drawn}) > 5
    assert {key for terms in drawn for key in terms["rate"]} <= {*list_keys("rate")}
