"""The book of a target: records, leaving, forgetting, statistics that make no sense."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.errors import FormatError, UsageError
from bursar.shares.book import FORGET_EVERY, IDLE_NS, TargetBook
from bursar.shares.handout import EXACT_MAX, TenantTerms, per_second
from bursar.shares.rules import RATE_MAX
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS

INTERVAL_NS = 100 * MILLISECOND_NS


def make_book(weights, capacity=1000, **options):
    tenants = {name: TenantTerms(weight=weight) for name, weight in weights.items()}
    return TargetBook(tenants, Rate.of(capacity), INTERVAL_NS, **options)


def finals(handout):
    return {tenant: line.final for tenant, line in handout.lines.items()}


def test_only_tenants_with_demand_are_given_tokens():
    book = make_book({"a": 1, "b": 3, "idle": 6})
    handout = book.close({"a": 500, "b": 500, "idle": 0})
    assert finals(handout) == {"a": 25, "b": 75}
    assert handout.lines["b"].rate == 750


def test_a_tenant_without_tokens_has_rate_1_and_is_never_left_without_a_rule():
    book = make_book({"a": 1_000_000, "b": 1}, capacity=10)
    handout = book.close({"a": 500, "b": 500})
    assert handout.lines["b"].final == 0 and handout.lines["b"].rate == 1


def test_fractions_of_the_capacity_are_handed_out_over_time():
    book = make_book({"a": 1}, capacity=25)
    assert [book.close({"a": 9}).tokens for _ in range(4)] == [2, 3, 2, 3]


def test_nothing_is_handed_out_when_nobody_asks_and_nothing_is_saved_up():
    book = make_book({"a": 1})
    assert book.close({}).tokens == 0
    assert book.close({"a": 1}).tokens == 100


def test_a_leaving_tenants_record_is_settled_against_the_rest():
    book = make_book({"a": 1, "b": 1, "c": 2})
    for _ in range(5):
        book.close({"a": 1, "b": 400, "c": 400})
    assert book.record("a") > 0 > book.record("b")
    book.leave("a")
    assert book.records() == {"b": 0, "c": 0}
    assert book.close({"b": 1, "c": 1}).tokens == 100
    book.leave("a")  # again: nothing to settle


def test_tenants_that_a_new_policy_leaves_out_leave():
    book = make_book({"a": 1, "b": 1})
    book.close({"a": 1, "b": 400})
    book.set_tenants({"b": TenantTerms(weight=2), "c": TenantTerms()})
    assert book.records() == {"b": 0}
    assert finals(book.close({"b": 900, "c": 900})) == {"b": 67, "c": 33}


def test_old_records_are_forgotten_by_half_in_a_half_life():
    book = make_book({"a": 1, "b": 1}, half_life_ns=SECOND_NS * 10)
    for _ in range(40):
        book.close({"a": 1, "b": 400})
    before = book.record("a")
    for _ in range(100):
        book.close({"b": 400})  # a is away: it neither lends nor is it paid
    assert book.record("a") == pytest.approx(before / 2, rel=0.05)
    assert sum(book.records().values()) == 0
    for _ in range(3000):
        book.close({"b": 400})
    assert not any(book.records().values())


def test_caps_bound_what_is_owed():
    tenants = {"a": TenantTerms(lend=30), "b": TenantTerms(borrow=50), "c": TenantTerms()}
    book = TargetBook(tenants, Rate.of(3000), INTERVAL_NS)
    for _ in range(20):
        handout = book.close({"a": 1, "b": 900, "c": 1})
        assert sum(finals(handout).values()) == 300
        assert book.record("a") <= 30 and book.record("b") >= -50


def test_a_tenant_that_uses_its_tokens_is_taken_to_want_more_and_more():
    book = make_book({"a": 1, "b": 1})
    book.close_served({"a": 100, "b": 20}, INTERVAL_NS)
    wanted = []
    for _ in range(6):
        line = book.handout.lines["a"]
        wanted.append(book.close_served({"a": line.final, "b": 20}, INTERVAL_NS).lines["a"].demand)
    assert wanted[1:] == sorted(wanted[1:]) and wanted[-1] == 100
    lines = book.close_served({"b": 20}, INTERVAL_NS).lines
    assert lines["a"].demand > 50, "one interval without I/O may be a slice of the kernel's"
    assert "a" not in book.close_served({"b": 20}, INTERVAL_NS).lines, "two are none"


def test_a_tenant_that_leaves_tokens_wants_what_it_uses_and_is_held_to_its_own_part():
    book = make_book({"a": 1, "b": 1})
    for _ in range(10):
        lines = book.close_served({"a": 100, "b": 20}, INTERVAL_NS).lines
    assert (lines["b"].demand, lines["b"].final, lines["b"].rate) == (20, 20, 500)
    assert (lines["a"].final, lines["a"].rate) == (80, 800)


def test_usage_is_measured_against_the_time_that_really_passed():
    book = make_book({"a": 1, "b": 1})
    book.close({"a": 500, "b": 500})
    lines = book.close_served({"a": 96, "b": 150}, 3 * INTERVAL_NS).lines
    assert (lines["a"].demand, lines["b"].demand) == (32, 50)


@pytest.mark.parametrize("nonsense", [-5, 1.5, "many", True, None])
def test_a_statistic_that_makes_no_sense_is_left_out_and_named(nonsense):
    book = make_book({"a": 1, "b": 1})
    handout = book.close({"a": nonsense, "b": 500})
    assert finals(handout) == {"b": 100}
    assert len(handout.problems) == 1 and "'a'" in handout.problems[0]
    assert book.close_served({"a": nonsense, "b": 500}, INTERVAL_NS).tokens == 100


def test_a_tenant_that_is_not_in_the_policy_is_named_and_costs_nobody_a_token():
    book = make_book({"a": 1})
    handout = book.close({"a": 9, "stranger": 9})
    assert finals(handout) == {"a": 100}
    assert "stranger" in handout.problems[0] and "policy" in handout.problems[0]


def test_a_star_in_the_policy_stands_for_every_other_tenant():
    book = make_book({"*": 1, "a": 3})
    handout = book.close({"a": 500, "stranger": 500})
    assert finals(handout) == {"a": 75, "stranger": 25}
    for number in range(1000):
        book.close({f"job{number}": 5})
    assert len(book.tenants) < 200, "quiet strangers are forgotten"


def test_the_nearest_template_gives_a_tenant_its_terms():
    book = make_book({"*": 1, "acme/*": 3, "acme/search": 6})
    handout = book.close({"zoe": 500, "acme/web": 500, "acme/search": 500})
    assert finals(handout) == {"zoe": 10, "acme/web": 30, "acme/search": 60}


def test_a_tenant_of_a_template_is_not_waited_for_for_ever():
    book = make_book({"*": 1, "a": 1}, half_life_ns=None)
    for _ in range(FORGET_EVERY):
        book.close({"a": 400, "stranger": 1})
    assert book.record("stranger") > 0
    for _ in range(IDLE_NS // INTERVAL_NS):
        book.close({"a": 50})
    assert "stranger" in book, "it is owed something, and may come back for it"
    for _ in range(2 * FORGET_EVERY):
        book.close({"a": 50})
    assert book.records() == {"a": 0}, "its record is settled against the rest"


def test_a_listed_tenant_has_no_entry_until_it_asks_and_none_once_it_is_settled():
    book = make_book({"a": 1, "b": 1, "c": 1})
    assert book.tenants == ()
    book.close({"a": 900, "b": 900})
    assert set(book.tenants) == {"a", "b"} and set(book.listed) == {"a", "b", "c"}
    for _ in range(2 * FORGET_EVERY):
        book.close({"a": 900})
    assert book.tenants == ("a",)


def test_a_listed_tenant_that_is_owed_something_is_never_forgotten():
    book = make_book({"a": 1, "b": 1})
    book.close({"a": 1, "b": 400})
    owed = book.record("a")
    for _ in range(IDLE_NS // INTERVAL_NS + 2 * FORGET_EVERY):
        book.close({"b": 50})
    assert book.record("a") == owed > 0


def test_another_interval_is_filled_as_the_capacity_says():
    book = make_book({"a": 1}, 1234)
    for interval_ns in (INTERVAL_NS, INTERVAL_NS // 3, 7 * INTERVAL_NS):
        book.set_interval(interval_ns)
        given = sum(book.close({"a": 10**6}).tokens for _ in range(30))
        assert abs(given - 1234 * 30 * interval_ns / SECOND_NS) < 1


def test_records_survive_a_restart_and_those_of_departed_tenants_are_settled():
    book = make_book({"a": 1, "b": 1, "c": 1})
    for _ in range(9):
        book.close({"a": 1, "b": 400, "c": 300})
    again = make_book({"a": 1, "b": 1, "c": 1})
    again.replay([b"\x80", book.snapshot()])
    assert again.records() == book.records()
    fewer = make_book({"a": 1, "b": 1})
    fewer.replay([book.snapshot()])
    assert sum(fewer.records().values()) == 0 and set(fewer.records()) == {"a", "b"}


@pytest.mark.parametrize("record", [b"\xff", b"\x81\xa1a\x05", b"\x81\xa1a\xa1b"])
def test_a_journal_that_holds_something_else_is_refused(record):
    with pytest.raises(FormatError):
        make_book({"a": 1}).replay([record])


def test_weights_below_one_are_refused():
    with pytest.raises(UsageError, match="weight"):
        make_book({"a": 0})


steps = st.one_of(
    st.tuples(st.just("close"), st.dictionaries(st.sampled_from("abcde"), st.integers(0, 300), max_size=5)),
    st.tuples(st.just("served"), st.dictionaries(st.sampled_from("abcde"), st.integers(-2, 300), max_size=5)),
    st.tuples(st.just("leave"), st.sampled_from("abcde")),
    st.tuples(st.just("restart"), st.none()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40), st.sampled_from([None, SECOND_NS]), st.integers(1, 2000))
def test_whatever_happens_records_sum_to_zero_and_tokens_to_the_capacity(history, half_life_ns, capacity):
    def build():
        return make_book({"a": 1, "b": 2, "*": 1}, capacity, half_life_ns=half_life_ns)

    book = build()
    for kind, value in history:
        if kind == "leave":
            book.leave(value)
        elif kind == "restart":
            snapshot = book.snapshot()
            book = build()
            book.replay([snapshot])
        else:
            handout = book.close(value) if kind == "close" else book.close_served(value, INTERVAL_NS)
            assert sum(finals(handout).values()) == handout.tokens
            if handout.lines:
                assert handout.tokens in (capacity // 10, -(-capacity // 10))
        assert sum(book.records().values()) == 0
        assert np.isfinite(book._remainder).all()


def test_rates_are_exact_however_large_and_at_least_one() -> None:
    tokens = np.array([0, 7, EXACT_MAX], np.int64)
    expected = [1, 7 * 4, min(RATE_MAX, EXACT_MAX * 4)]
    assert per_second(tokens, SECOND_NS // 4).tolist() == expected
    assert per_second(tokens[:2], SECOND_NS // 4).tolist() == expected[:2]
