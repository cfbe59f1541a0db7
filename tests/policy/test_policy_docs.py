"""docs/policy.md: its examples are policies, its mistakes are reported as printed, no key is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bursar.errors import PolicyError
from bursar.policy import parse
from bursar.policy.keys import ALERT, DAEMON, POLICY
from bursar.policy.kinds import RECORDS
from bursar.policy.tables import Key, Named, Record, write_toml

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
EXAMPLES = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
MISTAKEN = [text for text in EXAMPLES if "fortnight" in text]
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


def test_every_example_is_a_policy() -> None:
    right = [text for text in EXAMPLES if text not in MISTAKEN]
    assert len(right) == 8
    for text in right:
        parse(text)


def test_the_mistakes_are_reported_as_printed() -> None:
    [text] = MISTAKEN
    [printed] = re.findall(r"^```text\nbursar: (.*?)\n```", PAGE, re.M | re.S)
    with pytest.raises(PolicyError) as caught:
        parse(text, "policy.toml")
    assert str(caught.value) == printed


def list_keys() -> Iterator[tuple[str, str, Key]]:
    yield from (("The whole file", name, key) for name, key in POLICY.keys.items())
    yield from (("The daemon", name, key) for name, key in DAEMON.keys.items())
    yield from (("Alerts", name, key) for name, key in ALERT.keys.items())
    for kind, record in RECORDS.items():
        for name, key in record.keys.items():
            if name not in RECORDS["claim"].keys or name in ("paths", "dead_holder", "aging"):
                yield kind, name, key
        tenants: Any = record.keys["tenant"].shape
        assert isinstance(tenants, Named) and isinstance(tenants.shape, Record)
        yield from ((kind, f"tenant {name}", key) for name, key in tenants.shape.keys.items())


@pytest.mark.parametrize(("section", "name", "key"), list(list_keys()))
def test_every_key_is_documented_with_its_default(section: str, name: str, key: Key) -> None:
    label = name.replace("tenant ", "tenant `") + "`" if name.startswith("tenant ") else f"`{name}`"
    row = re.search(rf"^\| {re.escape(label)} \| (.*?) \|", SECTIONS[section], re.M)
    assert row, f"{label} is not in the table of {section}"
    if isinstance(key.default, str | int | list | dict):
        plain = str(key.default) if isinstance(key.default, int) else write_toml(key.default)
        expected = {"True": "true", "False": "false", "{  }": "{}"}.get(plain, plain)
        assert row[1] == f"`{expected}`"
