"""The two books of the lease, stepped by hand."""

from __future__ import annotations

import pytest

from bursar.book import Effects, Record, Send
from bursar.world import MILLISECOND_NS
from bursar_lab.leases.book import (
    RESEND_NS,
    Ask,
    HolderBook,
    Lease,
    OwnerBook,
    Return,
    Settled,
    guarded_ns,
)

TOTAL = 100
TOKENS = 10
DURATION_NS = 1_000 * MILLISECOND_NS
DRIFT_PPM = 1_000


def owner(records: list[bytes] | None = None) -> OwnerBook:
    book = OwnerBook(TOTAL, TOKENS, "holder", DURATION_NS, DRIFT_PPM)
    book.replay(records or [])
    return book


def holder(life: int = 1, records: list[bytes] | None = None) -> HolderBook:
    book = HolderBook(life, "owner", DURATION_NS)
    book.replay(records or [])
    return book


def written(effects: Effects) -> list[bytes]:
    return [effect.data for effect in effects if isinstance(effect, Record)]


def sent(effects: Effects) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def live_holder() -> tuple[HolderBook, list[bytes]]:
    book = holder()
    records = written(book.receive(5, "owner", Lease(1, 1, 0, TOKENS)))
    book.synced(6, 1)
    return book, records


@pytest.mark.parametrize("drift_ppm", [0, 1, 200, 50_000, 300_000])
def test_the_guard_outlasts_the_lease_whatever_the_clocks(drift_ppm: int) -> None:
    for duration_ns in (1, 999, DURATION_NS):
        shortest_true = guarded_ns(duration_ns, drift_ppm) / (1_000_000 + drift_ppm)
        longest_true = duration_ns / (1_000_000 - drift_ppm)
        assert shortest_true >= longest_true


def test_the_owner_sends_a_lease_only_once_its_debit_is_durable() -> None:
    book = owner()
    effects = book.receive(0, "holder", Ask(1, 7))
    assert sent(effects) == [] and len(written(effects)) == 1
    assert book.unspent == TOTAL - TOKENS and not book.uses(0)
    assert sent(book.synced(1, 1)) == [Lease(1, 1, 7, TOKENS)]


def test_the_owner_leases_once_at_a_time() -> None:
    book = owner()
    book.receive(0, "holder", Ask(1, 7))
    assert book.receive(0, "holder", Ask(1, 8)) == []
    book.synced(1, 1)
    assert book.receive(2, "holder", Ask(2, 9)) == []
    assert book.unspent == TOTAL - TOKENS


def test_the_owner_without_enough_tokens_leases_nothing() -> None:
    book = OwnerBook(TOKENS - 1, TOKENS, "holder", DURATION_NS, DRIFT_PPM)
    assert book.receive(0, "holder", Ask(1, 7)) == []
    assert book.uses(0)


def test_the_owner_repeats_a_lease_until_its_tokens_are_back() -> None:
    book = owner()
    book.receive(0, "holder", Ask(1, 7))
    book.synced(1, 1)
    assert book.wake_at() == 1 + RESEND_NS
    assert book.tick(RESEND_NS) == []
    assert sent(book.tick(1 + RESEND_NS)) == [Lease(1, 1, 7, TOKENS)]
    book.receive(2 + RESEND_NS, "holder", Return(1, 4))
    assert sent(book.synced(3 + RESEND_NS, 2)) == [Settled(1)]
    assert book.wake_at() is None
    assert book.unspent == TOTAL - 6 and book.uses(3 + RESEND_NS)


def test_a_repeated_return_is_credited_once_before_and_after_its_sync() -> None:
    book = owner()
    book.receive(0, "holder", Ask(1, 7))
    book.synced(1, 1)
    assert len(written(book.receive(2, "holder", Return(1, 4)))) == 1
    assert book.receive(2, "holder", Return(1, 4)) == []
    book.synced(3, 2)
    assert sent(book.receive(4, "holder", Return(1, 4))) == [Settled(1)]
    assert book.unspent == TOTAL - 6


def test_the_owner_uses_the_thing_again_after_the_guard_though_no_token_is_back() -> None:
    book = owner()
    book.receive(10, "holder", Ask(1, 7))
    until = 10 + guarded_ns(DURATION_NS, DRIFT_PPM)
    assert not book.uses(until - 1)
    assert book.uses(until)
    assert book.unspent == TOTAL - TOKENS


def test_a_restarted_owner_waits_the_whole_time_from_its_first_tick() -> None:
    book = owner()
    records = written(book.receive(0, "holder", Ask(1, 7)))
    book = owner(records)
    assert not book.uses(10**18)
    assert sent(book.tick(50)) == [Lease(1, 0, 0, TOKENS)], "no life will take that for its own asking"
    assert not book.uses(50 + guarded_ns(DURATION_NS, DRIFT_PPM) - 1)
    assert book.uses(50 + guarded_ns(DURATION_NS, DRIFT_PPM))
    assert book.unspent == TOTAL - TOKENS


def test_the_holder_counts_a_lease_only_once_its_arrival_is_durable() -> None:
    book = holder()
    book.receive(5, "owner", Lease(1, 1, 0, TOKENS))
    assert book.unspent == 0 and not book.spend(5, 1)
    book.synced(6, 1)
    assert book.unspent == TOKENS and book.spend(6, 3)
    assert book.unspent == TOKENS - 3


def test_the_holder_counts_a_repeated_lease_once() -> None:
    book, _ = live_holder()
    assert book.receive(7, "owner", Lease(1, 1, 0, TOKENS)) == []
    assert book.unspent == TOKENS


def test_the_lease_lasts_from_the_asking() -> None:
    book, _ = live_holder()
    assert book.uses(DURATION_NS - 1) and not book.uses(DURATION_NS)
    assert book.wake_at() == DURATION_NS
    assert not book.spend(DURATION_NS, 1)
    book.tick(DURATION_NS)
    assert sent(book.synced(DURATION_NS + 1, 2)) == [Return(1, TOKENS)]


@pytest.mark.parametrize("lease", [Lease(1, 1, -DURATION_NS, TOKENS), Lease(1, 9, 0, TOKENS)])
def test_a_lease_too_late_or_of_another_life_moves_its_tokens_and_no_more(lease: Lease) -> None:
    book = holder()
    book.receive(5, "owner", lease)
    book.synced(6, 1)
    assert not book.uses(6) and book.unspent == 0
    assert sent(book.synced(7, 2)) == [Return(1, TOKENS)]


def test_ending_early_gives_back_what_is_unspent_and_ending_again_nothing() -> None:
    book, _ = live_holder()
    book.spend(6, 4)
    assert len(written(book.end(7))) == 1
    assert not book.uses(7) and book.unspent == 0
    assert book.end(8) == []
    assert sent(book.synced(9, 2)) == [Return(1, 6)]
    assert sent(book.receive(10, "owner", Settled(1))) == [Ask(1, 10)]
    assert book.end(11) == [], "the lease that is over must not end a second time"


def test_a_later_lease_settles_an_earlier_return() -> None:
    book, _ = live_holder()
    book.end(7)
    book.synced(8, 2)
    book.receive(9, "owner", Lease(2, 1, 5, TOKENS))
    book.synced(10, 3)
    assert book.uses(10) and book.unspent == TOKENS
    assert len(written(book.tick(5 + DURATION_NS))) == 1, "it ends like any other"


def test_a_holder_that_crashed_gives_nothing_back() -> None:
    _, records = live_holder()
    book = holder(2, records)
    end = written(book.tick(0))
    assert len(end) == 1 and book.unspent == 0 and not book.uses(0)
    assert sent(book.synced(1, 1)) == [Return(1, 0)]


def test_a_holder_that_crashed_after_its_end_was_durable_gives_back_what_it_wrote() -> None:
    book, records = live_holder()
    book.spend(6, 4)
    records += written(book.end(7))
    book = holder(2, records)
    assert sent(book.tick(0)) == [Return(1, 6)]
    assert book.receive(1, "owner", Lease(1, 1, 0, TOKENS)) == []


def test_what_is_at_risk_is_what_a_crash_would_lose() -> None:
    book, _ = live_holder()
    book.spend(6, 4)
    assert book.at_risk() == 6
    book.end(7)
    assert book.at_risk() == 6 and book.between() == 6
    book.synced(8, 2)
    assert book.at_risk() == 0 and book.between() == 6


def test_neither_book_remembers_what_is_settled() -> None:
    """A lease that goes on for months must not grow."""
    giving, taking = owner(), holder()
    records = [0, 0]
    for number in range(1, 50):
        records[0] += len(written(giving.receive(number, "holder", Ask(1, number))))
        (lease,) = sent(giving.synced(number, records[0]))
        records[1] += len(written(taking.receive(number, "owner", lease)))
        taking.synced(number, records[1])
        records[1] += len(written(taking.end(number)))
        (returned,) = sent(taking.synced(number, records[1]))
        records[0] += len(written(giving.receive(number, "holder", returned)))
        (settled,) = sent(giving.synced(number, records[0]))
        taking.receive(number, "owner", settled)
    assert giving.unspent == TOTAL
    assert giving._pending.entries == taking._pending.entries == []
