"""A tenant's limit where several processes serve it: over all of them, charged before it is used."""

from __future__ import annotations

import pytest
from test_engine import Small, take_all

from bursar.pools.layout import Names, pack, unpack

LIMIT = 60


def share(small: Small, count: int = 3):
    return [small.engine("a", limit=LIMIT, shares_limit=True, reserves=small.reserves) for _ in range(count)]


@pytest.mark.parametrize("reserved", [0, 40])
def test_engines_of_one_tenant_get_its_limit_together_and_no_more(reserved: int) -> None:
    small = Small(10_000, **({"a": reserved} if reserved else {}))
    small.reserves = bool(reserved)
    engines = share(small)
    told: dict[int, int] = {}
    for _ in range(80):
        small.pass_ms(50, *engines)
        for engine in engines:
            taken = take_all(engine)
            told[engine.book.period] = told.get(engine.book.period, 0) + taken
    whole = [told[period] for period in sorted(told)[1:-1]]
    assert len(whole) >= 2
    assert max(whole) <= LIMIT
    assert min(whole) >= LIMIT - 3  # what one has charged and not used is nobody else's


def test_a_refusal_says_that_other_processes_were_charged_the_rest() -> None:
    small = Small(10_000)
    small.reserves = False
    one, other = share(small, 2)
    for _ in range(40):
        small.pass_ms(5, one)
        take_all(one)
    small.pass_ms(10, other)
    assert take_all(other) == 0
    refused = other.refuse(1)
    assert "0 were charged here and the rest to other processes" in str(refused)
    assert refused.limit == LIMIT


def test_a_word_of_a_later_period_is_left_alone_and_one_that_is_garbage_begun_anew() -> None:
    small = Small(10_000)
    small.reserves = False
    (engine,) = share(small, 1)
    word = Names("p").limit("a")
    later = pack(engine.book.period + 1, 7)
    small.words.write(word, later)
    assert take_all(engine) == 0
    assert small.words.read(word) == later
    small.words.write(word, pack(engine.book.period + (1 << 22), 7))
    fresh = small.engine("a", limit=LIMIT, shares_limit=True, reserves=False)
    assert take_all(fresh) > 0
    assert unpack(small.words.read(word)).period == fresh.book.period
