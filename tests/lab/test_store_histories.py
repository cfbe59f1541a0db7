"""The checker of histories finds what is wrong, and lets pass what is not; SQLite's passes."""

from __future__ import annotations

import random

import pytest

from bursar_lab.experiments.histories.checker import Event, judge
from bursar_lab.experiments.histories.live import measure


def write(start: int, end: int | None, value: int) -> Event:
    return Event("write", "r", start, end, value)


def read(start: int, end: int, value: int) -> Event:
    return Event("read", "r", start, end, value)


@pytest.mark.parametrize(
    ("history", "fine"),
    [
        ([write(0, 1, 1), read(2, 3, 1)], True),
        ([write(0, 1, 1), read(2, 3, 0)], False),
        ([write(0, 5, 1), read(1, 2, 0), read(3, 4, 1)], True),
        ([write(0, 5, 1), read(1, 2, 1), read(3, 4, 0)], False),
        ([write(0, None, 1), read(10, 11, 0), read(12, 13, 1)], True),
        ([write(0, None, 1), read(10, 11, 1), read(12, 13, 0)], False),
        ([write(0, 9, 1), write(1, 8, 2), read(10, 11, 1), read(12, 13, 1)], True),
        ([write(0, 9, 1), write(1, 8, 2), read(10, 11, 1), read(12, 13, 2)], False),
        ([read(0, 1, 7)], False),
    ],
)
def test_a_register_has_an_order_or_none(history: list[Event], fine: bool) -> None:
    assert (judge(history) == []) is fine


def test_the_search_agrees_with_one_store_that_does_one_thing_at_a_time() -> None:
    """Long histories of many at once, some without an answer; and one read of them changed."""
    for seed in range(5):
        history = invent(random.Random(seed))
        assert judge(history) == []
        reads = [at for at, event in enumerate(history) if event.kind == "read"]
        at = reads[len(reads) // 2]
        stale = history[at].value - 40 if history[at].value > 40 else 999_999
        broken = [*history]
        broken[at] = read(history[at].start, history[at].end or 0, stale)
        assert judge(broken) != []


def invent(chance: random.Random) -> list[Event]:
    history, value, now = [], 0, 0
    for number in range(1, 400):
        now += chance.randrange(3)
        start, end = now - chance.randrange(6), now + 1 + chance.randrange(6)
        if chance.random() < 0.5:
            happened = chance.random() < 0.9
            value = number if happened else value
            history.append(write(start, end if happened and chance.random() < 0.9 else None, number))
        else:
            history.append(read(start, end, value))
        now += 1
    return history


def test_what_goes_back_is_found() -> None:
    glances = [Event("glance", "r", at, at + 1, 0, version, "s") for at, version in ((0, 3), (2, 2))]
    assert judge(glances) != [] and judge(glances[:1]) == []
    numbers = [Event("number", "q", at, at + 1, value) for at, value in ((0, 5), (3, 4))]
    assert judge(numbers) != [] and judge(list(reversed(numbers))[:1]) == []
    assert judge([numbers[0], Event("number", "q", 0, 9, 5)]) != []
    holds = [Event("hold", "h", at, at + 4, at + 1, session=name) for at, name in ((0, "a"), (3, "b"))]
    assert judge(holds) != [] and judge([holds[0], Event("hold", "h", 5, 6, 9, session="b")]) == []


def test_a_store_in_use_passes() -> None:
    found = measure("sqlite", 600)
    assert found["found"] == [] and found["operations"] >= 600 and found["kills"]


def test_a_store_that_forgets_a_write_is_caught() -> None:
    found = measure("sqlite", 600, plant="forgets")
    assert any("no order explains" in words for words in found["found"])
