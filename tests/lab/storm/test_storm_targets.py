"""Shares and pools: no more than the target does; and what goes on without bursar."""

from __future__ import annotations

from storm_tale import Tale, places

SHARE = """
[resource.disk]
kind = "share"
capacity = "100/s"
[resource.disk.tenant]
acme = { weight = 2 }
"*" = { weight = 1 }
"""
POOL = """
[resource.records]
kind = "pool"
capacity = "20/s"
period = "2s"
[resource.records.tenant]
acme = { limit = "10/s" }
gold = { reservation = "10/s" }
"""
RATE = """
[resource.api]
kind = "rate"
servers = { a = "120/s" }
[resource.api.tenant]
acme = { limit = "10/s" }
free = {}
"""


def run_share(tale: Tale, since: float, rate: int, seconds: float, amount: int = 1, **fields: object) -> None:
    for number in range(int(rate * seconds)):
        tale.ask(since + number / rate, "disk", amount=amount, **fields)


# -- shares: wrong


def test_a_burst_of_a_second() -> None:
    tale = Tale(SHARE)
    run_share(tale, 5, 140, 1)
    (breach,) = tale.check("shares")
    assert "within 1 s" in breach.sentence and len(breach.places) == 20


def test_a_little_too_much_for_a_long_time() -> None:
    tale = Tale(SHARE)
    run_share(tale, 5, 104, 30)
    (breach,) = tale.check("shares")
    assert "within 1 s" not in breach.sentence


def test_two_clients_of_one_target_are_added_up() -> None:
    tale = Tale(SHARE)
    run_share(tale, 5, 70, 3, client="c1")
    run_share(tale, 5, 70, 3, client="c2")
    assert len(tale.check("shares")) == 1


def test_one_node_too_many_tokens_though_both_together_are_within() -> None:
    tale = Tale(SHARE)
    run_share(tale, 5, 160, 3, client="c1")
    run_share(tale, 5, 20, 3, client="c2", nodes=["b"])
    assert len(tale.check("shares")) == 1


# -- shares: right, though it looks wrong


def test_the_whole_capacity_for_a_long_time_with_a_lot_at_its_edge() -> None:
    tale = Tale(SHARE)
    run_share(tale, 5, 100, 20)
    tale.ask(15, "disk", amount=9)
    assert tale.check("shares") == []


def test_answers_that_all_came_at_once_were_granted_while_they_waited() -> None:
    tale = Tale(SHARE)
    for number in range(200):
        tale.ask(5 + number / 100, "disk", end=7.1, wait_ms=5000)
    assert tale.check("shares") == []


def test_each_node_is_a_target_of_its_own() -> None:
    tale = Tale(SHARE)
    run_share(tale, 5, 100, 3, client="c1")
    run_share(tale, 5, 100, 3, client="c2", nodes=["b"])
    assert tale.check("shares") == []


def test_where_nobody_knows_which_node_answered_their_capacities_are_added() -> None:
    tale = Tale(SHARE)
    run_share(tale, 5, 190, 3, nodes=["a", "b"])
    assert tale.check("shares") == []
    run_share(tale, 5, 60, 3, nodes=["a", "b"], client="c2")
    assert len(tale.check("shares")) == 1


def test_an_estimated_capacity_is_not_judged() -> None:
    tale = Tale(SHARE.replace('"100/s"', '"auto"'))
    run_share(tale, 5, 500, 3)
    assert tale.check("shares") == []


# -- pools: wrong


def test_more_than_the_capacity_in_a_period() -> None:
    tale = Tale(POOL)
    tale.ask(5, "records", "gold", 21, told={"period": 3})
    tale.ask(5.5, "records", "acme", 20, told={"period": 3})
    (breach,) = tale.check("pools")
    assert places(breach) == ["c1:1", "c1:2"] and "41 tokens" in breach.sentence


def test_a_pools_tenant_above_its_limit() -> None:
    tale = Tale(POOL)
    tale.ask(5, "records", "acme", 21, told={"period": 3})
    (breach,) = tale.check("pools")
    assert "at most 20" in breach.sentence


def test_a_tenant_that_the_pool_does_not_know() -> None:
    tale = Tale(POOL)
    tale.ask(5, "records", "nobody", 1, told={"period": 3})
    (breach,) = tale.check("pools")
    assert "at most 0" in breach.sentence


# -- pools: right, though it looks wrong


def test_the_whole_capacity_in_each_of_two_periods() -> None:
    tale = Tale(POOL)
    tale.ask(5.9, "records", "gold", 40, told={"period": 3})
    tale.ask(6.0, "records", "gold", 40, told={"period": 4})
    assert tale.check("pools") == []


def test_numbers_that_begin_anew_when_the_words_were_lost() -> None:
    tale = Tale(POOL)
    tale.ask(5, "records", "gold", 40, told={"period": 3})
    tale.ask(60, "records", "gold", 40, told={"period": 3})
    assert tale.check("pools") == []


def test_a_pool_without_bursar_is_counted_apart() -> None:
    tale = Tale(POOL)
    tale.ask(5, "records", "gold", 40, told={"period": 3})
    tale.ask(5.5, "records", "gold", 10, told={"period": 3, "fallback": "keep"})
    assert tale.check("pools") == []


# -- without bursar: wrong


def test_something_is_lent_where_the_policy_says_refuse() -> None:
    tale = Tale(RATE.replace('kind = "rate"', 'kind = "rate"\nwithout_bursar = "refuse"'))
    tale.ask(5, "api", told={"fallback": "keep"})
    (breach,) = tale.check("fallbacks")
    assert places(breach) == ["c1:1"]


def test_a_quota_lends() -> None:
    tale = Tale('[resource.llm]\nkind = "quota"\ntenant = { acme = { limit = 10 } }')
    tale.ask(5, "llm", told={"fallback": "keep"})
    assert len(tale.check("fallbacks")) == 1


def test_one_caller_keeps_more_than_its_limit_could_have_been() -> None:
    tale = Tale(RATE)
    for number in range(41):
        tale.ask(5 + number / 100, "api", told={"fallback": "keep"})
    (breach,) = tale.check("fallbacks")
    assert "it may be 40" in breach.sentence


def test_a_safe_rate_that_is_passed() -> None:
    tale = Tale(RATE.replace('kind = "rate"', 'kind = "rate"\nwithout_bursar = { safe = "5/s" }'))
    for number in range(30):
        tale.ask(5 + number / 50, "api", told={"fallback": "safe"})
    assert len(tale.check("fallbacks")) == 1


def test_shadow_mode_that_no_policy_has() -> None:
    tale = Tale(RATE)
    tale.ask(5, "api", told={"fallback": "shadow"})
    assert len(tale.check("fallbacks")) == 1


# -- without bursar: right, though it looks wrong


def test_each_caller_keeps_what_it_had() -> None:
    tale = Tale(RATE)
    for client in range(5):
        tale.ask(5, "api", amount=10, told={"fallback": "keep"}, client=f"c{client}")
    assert tale.check("fallbacks") == []


def test_a_caller_that_was_cut_off_goes_by_the_policy_that_it_knew() -> None:
    tale = Tale(RATE)
    tale.change(10, RATE.replace('kind = "rate"', 'kind = "rate"\nwithout_bursar = "refuse"'))
    tale.ask(12, "api", amount=10, told={"fallback": "keep"})
    assert tale.check("fallbacks") == []


def test_a_safe_rate_for_a_long_time() -> None:
    tale = Tale(RATE.replace('kind = "rate"', 'kind = "rate"\nwithout_bursar = { safe = "5/s" }'))
    for number in range(100):
        tale.ask(5 + number / 5, "api", told={"fallback": "safe"})
    assert tale.check("fallbacks") == []


def test_shadow_mode_lets_everybody_through() -> None:
    tale = Tale(RATE.replace('kind = "rate"', 'kind = "rate"\nshadow = true'))
    for number in range(500):
        tale.ask(5 + number / 500, "api", told={"fallback": "shadow"})
    assert tale.check("fallbacks") == []
