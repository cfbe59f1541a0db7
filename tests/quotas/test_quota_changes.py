"""What an account may spend changes: limits, top-ups and cuts; windows that begin and are forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from quota_town import TENANTS, Quota, Town, left

from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas import accounts, operations
from bursar.quotas.layout import Layout, read_account
from bursar.quotas.watch import GRACE_NS
from bursar.quotas.windows import is_over
from bursar.world import MILLISECOND_NS, SECOND_NS, Stat


async def test_a_top_up_reaches_every_node_and_a_cut_takes_what_is_unspent(town: Town) -> None:
    one = await town.open("a")
    two = await town.open("b")
    await (await one.acquire("acme", 100, wait=5.0)).release()
    with pytest.raises(Refused):
        await two.acquire("acme", 1, wait=5.0)
    await one.verb("set_limit", tenant="acme", limit=150)
    async with asyncio.timeout(5):
        while True:
            try:
                await (await two.acquire("acme", 30, wait=5.0)).release()
                break
            except Refused:
                await asyncio.sleep(0.02)  # the watch has not told yet
    await one.verb("set_limit", tenant="acme", limit=140)
    async with asyncio.timeout(5):
        while (total := (await one.decider.watch.take_survey())["acme"]).unspent != 10 or total.missing != 0:
            await asyncio.sleep(0.05)
    with pytest.raises(Refused):
        await two.acquire("acme", 11, wait=5.0)


async def test_a_new_policy_changes_limits_and_refuses_another_kind_of_window(town: Town) -> None:
    llm = await town.open("a")
    await (await llm.acquire("acme", 90, wait=5.0)).release()
    await llm.reconfigure(QuotaPolicy(name="llm", tenants={**TENANTS, "acme": QuotaTenant(limit=200)}))
    async with asyncio.timeout(5):
        while accounts.total(llm.courier.mints["acme"]) != 200:
            await asyncio.sleep(0.01)
    await llm.acquire("acme", 100, wait=5.0)
    with pytest.raises(UsageError, match="window: what was used counts for the window it was used in"):
        await llm.reconfigure(QuotaPolicy(name="llm", tenants=TENANTS, window="day"))


async def test_exact_and_fast_take_turns_and_no_unit_is_lost(town: Town) -> None:
    llm = await town.open("a", tenants={"acme": QuotaTenant(limit=1_000)})
    await (await llm.acquire("acme", 10, wait=5.0)).release()
    with pytest.raises(UsageError, match="set mode = fast"):
        llm.try_acquire("acme")
    fast = QuotaPolicy(name="llm", tenants={"acme": QuotaTenant(limit=1_000)}, mode="fast", block=100)
    await llm.reconfigure(fast)
    held = await llm.acquire("acme", 40, wait=5.0)
    await (await llm.acquire("acme", wait=5.0)).release()
    assert llm.try_acquire("acme") is not None
    await llm.reconfigure(msgspec.structs.replace(fast, block=300))
    await (await llm.acquire("acme", 250, wait=5.0)).release()
    await llm.reconfigure(msgspec.structs.replace(fast, mode="exact"))
    held.settle(5)
    await held.release()
    assert await left(llm) == (1_000 - 10 - 5 - 1 - 1 - 250, 0, 267), "nothing stays charged ahead"
    account = llm.courier.book.ledger.accounts["acme"]
    assert account.block == 0 and account.unspent == 733
    await (await llm.acquire("acme", 733, wait=5.0)).release()


@pytest.mark.parametrize(("limit", "left"), [(250, 160), (95, 5), (40, 0)], ids=["more", "less", "below use"])
async def test_a_limit_that_was_changed_while_no_node_ran_holds_from_the_next_start(
    town: Town, limit: int, left: int
) -> None:
    llm = await town.open("a")
    await (await llm.acquire("acme", 90, wait=5.0)).release()
    await town.close("a")
    llm = await town.open("a", tenants={**TENANTS, "acme": QuotaTenant(limit=limit)})
    with pytest.raises(Refused):
        await llm.acquire("acme", left + 1, wait=5.0)
    if left:
        await (await llm.acquire("acme", left, wait=5.0)).release()
    total = (await llm.decider.watch.take_survey())["acme"]
    assert (total.unspent, total.missing) == (0, 0)


def test_new_units_first_go_to_ledgers_that_may_owe_some_of_a_cut() -> None:
    """Else they could be used before the cut is carried out, and the use pass every limit there was."""
    mints = [("a", 50), ("b", 50), ("b", -80), ("c", -10)]
    assert accounts.assign(mints, 60, ["d", "b"]) == [("b", 60)]
    assert accounts.assign(mints, 85, ["d", "b"]) == [("b", 80), ("c", 5)], "of those that are up, first"
    assert accounts.assign(mints, 85, ["d", "c"]) == [("c", 10), ("b", 75)]
    assert accounts.assign(mints, 120, ["d"]) == [("b", 80), ("c", 10), ("d", 30)]
    netted = [*mints, ("b", 80), ("c", 10)]
    assert accounts.assign(netted, 5, ["d"]) == [("d", 5)]
    assert accounts.assign(netted, -5, ["d"]) == [("d", -5)]


async def test_a_second_node_with_the_same_new_policy_takes_no_top_up_away(town: Town) -> None:
    one, two = await town.open("a"), await town.open("b")
    await (await one.acquire("acme", 90, wait=5.0)).release()
    policy = QuotaPolicy(name="llm", tenants={**TENANTS, "acme": QuotaTenant(limit=200)})
    await one.reconfigure(policy)
    await accounts.top_up(town.worlds["a"].store, one.courier.layout, "acme", 50, ["a"])
    await two.reconfigure(policy)
    await two.verb("set_limit", tenant="acme", limit=200)  # had it looked before the other node was done
    data, _ = await town.worlds["b"].store.get(two.courier.layout.account("acme"))
    assert accounts.total(read_account(data).mints) == 250


async def test_a_top_up_outlasts_a_restart_with_the_same_policy(town: Town) -> None:
    llm = await town.open("a")
    await (await llm.acquire("acme", 90, wait=5.0)).release()
    await accounts.top_up(town.worlds["a"].store, llm.courier.layout, "acme", 1_000, ["a"])
    await town.close("a")
    llm = await town.open("a")
    assert (await llm.acquire("acme", 1_010, wait=5.0)).amount == 1_010


def go_to_window(llm: Any, window: str) -> None:
    """As the clock would, and stay there."""
    llm.decider.chains.window_of = lambda kind, wall_ns, zone: (window, None)
    llm.decider.chains.turn()


async def end_windows(llm: Quota, grace_ns: int = 0) -> None:
    """As the root does after a survey, until this node has heard of it."""
    llm.decider.watch.grace_ns = grace_ns
    async with asyncio.timeout(5):
        while not llm.courier.book.members:
            await asyncio.sleep(0.01)
    await llm.decider.watch.take_survey()
    await llm.decider.watch._end_windows()
    data, _ = await llm.courier.world.store.get(llm.courier.layout.accounts)
    async with asyncio.timeout(5):
        known = (llm.courier.mints, llm.courier.book.ledger.accounts)
        while any(is_over(account, data.decode()) for accounts in known for account in accounts):
            await asyncio.sleep(0.01)


async def test_windows_that_are_over_are_forgotten_but_for_the_last(town: Town) -> None:
    llm = await town.open("a", window="month")
    for window in ("2026-09", "2026-10", "2026-11", "2026-12"):
        go_to_window(llm, window)
        await (await llm.acquire("acme", 60, wait=5.0)).release()
    await end_windows(llm)
    kept = {"acme@2026-11", "acme@2026-12"}
    assert set(await llm.decider.watch.take_survey()) == kept
    assert {account for account in llm.courier.book.ledger.accounts if account.startswith("acme@")} == kept
    assert set(await town.worlds["a"].store.children(llm.courier.layout.accounts)) == {
        "acme%402026-11",
        "acme%402026-12",
    }
    go_to_window(llm, "2026-10")
    with pytest.raises(Unknown, match=r"the window of acme@2026-10 is over, .* is this node's clock right"):
        await llm.acquire("acme", 1, wait=1.0)
    await town.close("a")
    llm = await town.open("a", window="month")
    go_to_window(llm, "2026-12")
    with pytest.raises(Refused, match="40 of 100 left"):
        await llm.acquire("acme", 41, wait=5.0)


async def test_what_one_root_began_to_forget_the_next_goes_on_with(town: Town) -> None:
    tenants = {"team:a": QuotaTenant(limit=100)}
    llm = await town.open("a", window="month", tenants=tenants)
    for window in ("2026-09", "2026-10"):
        go_to_window(llm, window)
        await (await llm.acquire("team:a", 60, wait=5.0)).release()
    store, layout = town.worlds["a"].store, llm.courier.layout
    await store.create(layout.warning("team:a@2026-09", 80))
    await store.set(layout.accounts, b"2026-10")  # and then it died
    await town.close("a")
    llm = await town.open("a", window="month", tenants=tenants)
    go_to_window(llm, "2026-10")
    assert "team:a@2026-09" not in llm.courier.book.ledger.accounts, "known before anybody can ask"
    await end_windows(llm)
    store = town.worlds["a"].store
    assert await store.children(layout.accounts) == ["team%3Aa%402026-10"]
    assert await store.children(layout.warnings) == []


async def test_a_node_far_behind_its_time_refuses_and_stays_up(town: Town) -> None:
    llm = await town.open("a", window="month", mode="fast")
    for window in ("2026-09", "2026-10", "2026-11"):
        go_to_window(llm, window)
        await (await llm.acquire("acme", 60, wait=5.0)).release()
    await end_windows(llm)
    go_to_window(llm, "2026-09")
    llm.hand.end("acme")
    assert llm.try_acquire("acme", 1) is None
    with pytest.raises(Unknown, match="is this node's clock right"):
        await llm.acquire("acme", 1)
    go_to_window(llm, "2026-11")
    assert (await llm.acquire("acme", 1, wait=5.0)).amount == 1


async def test_a_window_with_an_open_hold_is_not_forgotten(town: Town) -> None:
    llm = await town.open("a", window="month")
    go_to_window(llm, "2026-09")
    held = await llm.acquire("acme", 60, wait=5.0)
    for window in ("2026-10", "2026-11"):
        go_to_window(llm, window)
        await (await llm.acquire("acme", 60, wait=5.0)).release()
    await end_windows(llm)
    assert "acme@2026-09" in llm.courier.mints
    held.settle(10)
    await held.release()
    async with asyncio.timeout(5):
        while "acme@2026-09" in llm.courier.mints:
            await end_windows(llm)
            await asyncio.sleep(0.01)


async def test_a_window_that_one_node_is_still_in_is_not_forgotten(town: Town) -> None:
    one, two = await town.open("a", window="month"), await town.open("b", window="month")
    for window in ("2026-09", "2026-10", "2026-11"):
        go_to_window(one, window)
        await (await one.acquire("acme", 60, wait=5.0)).release()
    go_to_window(two, "2026-10")
    await end_windows(one)
    assert "acme@2026-09" in one.courier.mints
    go_to_window(two, "2026-11")
    await end_windows(one)
    assert "acme@2026-09" not in one.courier.mints


@pytest.mark.parametrize(
    ("account", "horizon", "over"),
    [
        ("acme@2026-10", "2026-11", True),
        ("acme@2026-11", "2026-11", False),
        ("acme@2026-10-31", "2026-11", False),
        ("acme@2026-W44", "2026-W45", True),
        ("acme", "2026-11", False),
        ("acme@2026-10", "", False),
        ("joe@163.com", "2026-11", False),
        ("joe@163.com@2026-10", "2026-11", True),
        ("acme@2026-10", "2026-11-16T14 2026-11", True),
    ],
)
def test_a_window_is_over_if_it_is_before_the_horizon_and_of_its_kind(
    account: str, horizon: str, over: bool
) -> None:
    assert is_over(account, horizon) == over


async def test_a_window_is_an_account_of_its_own(town: Town) -> None:
    llm = await town.open("a", window="month")
    await (await llm.acquire("acme", 100, wait=5.0)).release()
    (account,) = [name for name in llm.courier.mints if name.startswith("acme@")]
    with pytest.raises(Refused) as refused:
        await llm.acquire("acme", 1, wait=5.0)
    assert refused.value.retry_after is not None and refused.value.retry_after < 32 * 86_400
    go_to_window(llm, "2999-01")
    await llm.acquire("acme", 100, wait=5.0)
    assert account != "acme@2999-01" and "acme@2999-01" in llm.courier.mints


async def test_what_is_refused_until_the_window_ends_is_granted_after_retry_after(town: Town) -> None:
    llm = await town.open("a", window="hour")
    chains, wall = llm.decider.chains, llm.courier.world.clock.wall
    began, short_ns = wall(), SECOND_NS

    def find_window(kind: str, wall_ns: int, zone: str) -> tuple[str, int]:
        number = (wall_ns - began) // short_ns
        return f"2999-01-{number // 24 + 1:02}T{number % 24:02}", began + (number + 1) * short_ns

    chains.window_of = find_window
    chains.turn()
    await asyncio.sleep(1 - (wall() - began) % short_ns / short_ns)  # the next has all of its time left
    await (await llm.acquire("acme", 100, wait=5.0)).release()
    with pytest.raises(Refused) as refused:
        await llm.acquire("acme", 100)
    assert refused.value.remaining == 0 and refused.value.retry_after is not None
    await asyncio.sleep(refused.value.retry_after)
    assert (await llm.acquire("acme", 100)).amount == 100


async def test_a_clock_that_visits_the_future_and_returns_costs_nothing(town: Town) -> None:
    """Every answer was Unknown, also after a restart."""
    llm = await town.open("a", window="day")
    await (await llm.acquire("acme", 30, wait=5.0)).release()
    chains = llm.decider.chains
    today, real = chains.window, chains.window_of
    for day in ("2999-01-01", "2999-01-02", "2999-01-03"):
        go_to_window(llm, day)
        await llm.acquire("acme", 100, wait=5.0)
        await end_windows(llm, GRACE_NS)
    chains.window_of = real
    chains.turn()
    assert chains.window == today
    assert (await llm.acquire("acme", 70, wait=5.0)).amount == 70
    with pytest.raises(Refused):
        await llm.acquire("acme", 1, wait=5.0)
    await town.close("a")
    with pytest.raises(Refused):
        await (await town.open("a", window="day")).acquire("acme", 1, wait=5.0)


async def test_the_grace_of_a_window_begins_anew_when_the_clock_has_gone_back(town: Town) -> None:
    llm = await town.open("a", window="day")
    await llm.acquire("acme", 100, wait=5.0)
    today, watch = llm.decider.chains.window, llm.decider.watch
    for day in ("2999-01-01", "2999-01-02"):
        go_to_window(llm, day)
        await llm.acquire("acme", 1, wait=5.0)
        await end_windows(llm, GRACE_NS)
    assert any("2999" in horizon for horizon in watch._over)
    go_to_window(llm, today)
    await end_windows(llm, GRACE_NS)
    assert not any("2999" in horizon for horizon in watch._over)


async def test_accounts_of_another_kind_of_window_are_forgotten_when_they_are_over(town: Town) -> None:
    """After a change of the kind they stayed for ever."""
    llm = await town.open("a", window="hour")
    go_to_window(llm, "2020-01-01T10")
    await (await llm.acquire("acme", 1, wait=5.0)).release()
    await town.close("a")
    llm = await town.open("a", window="month")
    await (await llm.acquire("acme", 1, wait=5.0)).release()
    async with asyncio.timeout(5):
        while "acme@2020-01-01T10" not in llm.courier.mints:
            await asyncio.sleep(0.01)
    await end_windows(llm)
    assert [name for name in llm.courier.mints if name.startswith("acme@")] == [
        llm.decider.chains.account("acme")
    ]


@pytest.mark.parametrize("window", ["none", "month"])
async def test_a_tenant_whose_name_has_an_at_sign_is_topped_up(town: Town, window: str) -> None:
    llm = await town.open("a", window=window, tenants={"joe@example.com": QuotaTenant(limit=10)})
    await (await llm.acquire("joe@example.com", 10, wait=5.0)).release()
    async with asyncio.timeout(5):
        while not llm.decider.is_ready():
            await asyncio.sleep(0.01)
    account = llm.decider.chains.account("joe@example.com")
    for given, limit in (("joe@example.com", 15), (account, 20)):
        said = await llm.verb("top_up", account=given, amount=5)
        assert (said["account"], said["limit"]) == (account, limit)
    async with asyncio.timeout(5):
        while llm.decider.chains.limit(account) < 20:
            await asyncio.sleep(0.01)
    assert (await llm.acquire("joe@example.com", 10, wait=5.0)).amount == 10


async def test_what_a_fenced_ledger_may_have_sent_is_asked_for_less_and_less_often(town: Town) -> None:
    """Once a second, for ever."""
    one, two = await town.open("a"), await town.open("b")
    async with asyncio.timeout(5):
        while not one.courier.book.children:
            await asyncio.sleep(0.01)
    await (await one.acquire("acme", 60, wait=5.0)).release()
    await town.close("b", cleanly=False)
    layout = two.courier.layout
    await operations.fence(town.worlds["a"].store, layout, "b", by="operator", at_ns=0)
    round_ = one.courier.book.round(one.courier.book.ledger.account("acme"))
    async with asyncio.timeout(20):
        while round_.loose_verdicts < 3:
            with pytest.raises((Refused, Unknown)):
                await one.acquire("acme", 99)
            await asyncio.sleep(0.05)
    began = round_.loose_verdicts
    until = asyncio.get_running_loop().time() + 2.5
    while asyncio.get_running_loop().time() < until:
        with pytest.raises(Refused):
            await one.acquire("acme", 99)
        await asyncio.sleep(0.02)
    assert round_.loose_verdicts == began


class Racing:
    """A store in which, just before an account is looked for, its window is forgotten elsewhere."""

    def __init__(self, store: Any, layout: Layout) -> None:
        self._store = store
        self._layout = layout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path != self._layout.accounts:
            await accounts.forget(self._store, self._layout, "2026-12")
        found: tuple[bytes, Stat] = await self._store.get(path)
        return found


async def test_an_account_is_not_opened_while_its_window_is_being_forgotten(town: Town) -> None:
    llm = await town.open("a", window="month")
    racing: Any = Racing(town.worlds["a"].store, llm.courier.layout)
    with pytest.raises(accounts.WindowOverError):
        await accounts.open_account(racing, llm.courier.layout, "acme@2026-11", 100, ["a"])
    assert await racing.children(llm.courier.layout.accounts) == []


async def test_a_shorter_expiry_holds_for_open_holds_too(town: Town) -> None:
    llm = await town.open("a")
    grant = await llm.acquire("acme", 40, wait=5.0)
    shorter = QuotaPolicy(name="llm", tenants=TENANTS, hold_expiry_ns=100 * MILLISECOND_NS)
    await llm.reconfigure(shorter)
    async with asyncio.timeout(5):
        while llm.hold_of(grant).used is None:
            await asyncio.sleep(0.05)
    assert llm.hold_of(grant).used == 40
