"""What an account may spend changes: limits, top-ups and cuts; windows that begin and are forgotten."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from quota_town import TENANTS, Quota, Town, left

from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas import accounts, operations
from bursar.quotas.layout import Layout, read_name
from bursar.quotas.watch import GRACE_NS
from bursar.quotas.windows import Window, is_over, split_account
from bursar.world import MILLISECOND_NS, SECOND_NS, Stat


async def test_a_top_up_reaches_every_node_and_a_cut_takes_what_is_unspent(town: Town) -> None:
    one = await town.open("a")
    two = await town.open("b")
    await (await one.acquire("acme", 100, wait=5.0)).release()
    with pytest.raises(Refused):
        await two.acquire("acme", 1, wait=5.0)
    assert (await one.verb("set_limit", tenant="acme", limit=150))["unheard"] == []
    await (await two.acquire("acme", 30, wait=5.0)).release()
    assert (await one.verb("set_limit", tenant="acme", limit=140))["unheard"] == []
    async with asyncio.timeout(5):
        while (total := (await one.decider.watch.take_survey())["acme"]).unspent != 10 or total.missing != 0:
            await asyncio.sleep(0.05)
    with pytest.raises(Refused):
        await two.acquire("acme", 11, wait=5.0)


async def test_a_change_that_was_told_as_made_is_known_at_every_node(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was told of a cut may rely on it: what is asked for afterwards, anywhere, finds it made."""
    one = await town.open("a")
    two = await town.open("b")
    for each in (one, two):
        await (await each.acquire("acme", 1, wait=5.0)).release()
    monkeypatch.setattr(operations, "HEARD_NS", 30 * SECOND_NS)  # however busy the machine is
    for amount in (40, -10, 25, -5):
        said = await one.verb("top_up", account="acme", amount=amount)
        assert said["unheard"] == []
        known = [accounts.total(each.courier.mints["acme"]) for each in (one, two)]
        assert known == [said["limit"]] * 2
    stuck = asyncio.Event()
    monkeypatch.setattr(two.courier, "heard", lambda version: stuck.wait())
    monkeypatch.setattr(operations, "HEARD_NS", 100 * MILLISECOND_NS)
    assert "b" in (await one.verb("top_up", account="acme", amount=1))["unheard"]


async def test_a_record_that_was_being_read_when_it_was_changed_is_read_again(town: Town) -> None:
    """Its answer may be of before the change, and come after the news of it."""
    one = await town.open("a")
    two = await town.open("b")
    await (await two.acquire("beta", 1, wait=5.0)).release()
    registry = one.courier.registry
    if "beta" in registry.windows:
        del registry.windows["beta"]
        one.courier.mints.pop("beta")
    layout, world = one.courier.layout, one.courier.world
    stale = await accounts.read_tenants(world.store, layout, ["beta"])
    held, reads = asyncio.Event(), 0

    async def read_late(store: Any, layout: Layout, tenants: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads > 1:
            return await read_tenants(store, layout, tenants)
        await held.wait()
        return stale

    read_tenants, accounts.read_tenants = accounts.read_tenants, read_late
    try:
        reading = asyncio.ensure_future(registry.read("beta"))
        while not reads:
            await asyncio.sleep(0)
        change = asyncio.ensure_future(two.verb("top_up", account="beta", amount=-100))
        while not any(key == ("beta", False) for key in registry._wanted):
            await asyncio.sleep(0.001)
        held.set()
        assert (await change)["unheard"] == []
        await reading
        assert accounts.total(registry.mints["beta"]) == 900
    finally:
        accounts.read_tenants = read_tenants


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
    assert await read_total(two, "acme") == 250


async def test_a_top_up_outlasts_a_restart_with_the_same_policy(town: Town) -> None:
    llm = await town.open("a")
    await (await llm.acquire("acme", 90, wait=5.0)).release()
    await accounts.top_up(town.worlds["a"].store, llm.courier.layout, "acme", 1_000, ["a"])
    await town.close("a")
    llm = await town.open("a")
    assert (await llm.acquire("acme", 1_010, wait=5.0)).amount == 1_010


def go_to(llm: Any, moment: str) -> None:
    """The wall clock stands still there."""
    at_ns = int(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()) * SECOND_NS
    llm.courier.world.clock.wall = lambda: at_ns


def month(of: str, number: int) -> str:
    """The account of a tenant in a month of 2026."""
    return f"{of}@2026-{number:02}-01..2026-{number + 1:02}-01"


async def list_stored(llm: Quota) -> list[str]:
    """The accounts that the store has."""
    store, layout = llm.courier.world.store, llm.courier.layout
    found = []
    for shard in await store.children(layout.accounts):
        tenants = map(read_name, await store.children(f"{layout.accounts}/{shard}"))
        for tenant, (record, _) in (await accounts.read_tenants(store, layout, tenants)).items():
            found += [f"{tenant}@{name}" if name else tenant for name in record.windows]
    return sorted(found)


async def read_total(llm: Quota, tenant: str) -> int:
    """What the store says that the tenant may use, where there are no windows."""
    found = await accounts.read_tenants(llm.courier.world.store, llm.courier.layout, [tenant])
    return accounts.total(found[tenant][0].windows[""].mints)


async def end_windows(llm: Quota, grace_ns: int = 0) -> None:
    """As the root does after a survey, until this node has heard of it."""
    llm.decider.watch.grace_ns = grace_ns
    async with asyncio.timeout(5):
        while not llm.courier.book.members:
            await asyncio.sleep(0.01)
    for _ in range(3):  # what it is at every node, what is over by that, what may be forgotten of it
        await llm.decider.watch.go_round()
    horizon_s = (await accounts.read_horizon(llm.courier.world.store, llm.courier.layout)).ends_s
    async with asyncio.timeout(5):
        known = (llm.courier.mints, llm.courier.book.ledger.accounts)
        while any(is_over(account, horizon_s) for accounts in known for account in accounts):
            await asyncio.sleep(0.01)


async def test_windows_that_are_over_are_forgotten_but_for_the_last(town: Town) -> None:
    llm = await town.open("a", window="month")
    for day in ("2026-08-15", "2026-09-15", "2026-10-15", "2026-11-15"):
        go_to(llm, day)
        await (await llm.acquire("acme", 60, wait=5.0)).release()
    await end_windows(llm)
    kept = {month("acme", 10), month("acme", 11)}
    assert set(await llm.decider.watch.take_survey()) == kept
    assert {account for account in llm.courier.book.ledger.accounts if account.startswith("acme@")} == kept
    assert set(await list_stored(llm)) == kept
    go_to(llm, "2026-09-15")
    with pytest.raises(Unknown, match=r"the window of acme is over .* is this node's clock right"):
        await llm.acquire("acme", 1, wait=1.0)
    await town.close("a")
    llm = await town.open("a", window="month")
    go_to(llm, "2026-11-20")
    with pytest.raises(Refused, match="40 of 100 left"):
        await llm.acquire("acme", 41, wait=5.0)


async def test_what_one_root_began_to_forget_the_next_goes_on_with(town: Town) -> None:
    tenants = {"team:a": QuotaTenant(limit=100)}
    llm = await town.open("a", window="month", tenants=tenants)
    for day in ("2026-09-15", "2026-10-15"):
        go_to(llm, day)
        await (await llm.acquire("team:a", 60, wait=5.0)).release()
    store, layout = town.worlds["a"].store, llm.courier.layout
    horizon_s = split_account(month("team:a", 9))[1].end_s  # type: ignore[union-attr]
    await store.set(layout.accounts, str(horizon_s).encode())  # and then it died
    await town.close("a")
    llm = await town.open("a", window="month", tenants=tenants)
    go_to(llm, "2026-10-15")
    assert month("team:a", 9) not in llm.courier.book.ledger.accounts, "known before anybody can ask"
    await end_windows(llm)
    assert await list_stored(llm) == [month("team:a", 10)]


async def test_a_node_far_behind_its_time_refuses_and_stays_up(town: Town) -> None:
    llm = await town.open("a", window="month", mode="fast")
    for day in ("2026-09-15", "2026-10-15", "2026-11-15"):
        go_to(llm, day)
        await (await llm.acquire("acme", 60, wait=5.0)).release()
    await end_windows(llm)
    go_to(llm, "2026-09-15")
    llm.hand.end("acme")
    assert llm.try_acquire("acme", 1) is None
    with pytest.raises(Unknown, match="is this node's clock right"):
        await llm.acquire("acme", 1)
    go_to(llm, "2026-11-15")
    assert (await llm.acquire("acme", 1, wait=5.0)).amount == 1


async def test_a_window_with_an_open_hold_is_not_forgotten(town: Town) -> None:
    llm = await town.open("a", window="month")
    go_to(llm, "2026-09-15")
    held = await llm.acquire("acme", 60, wait=5.0)
    for day in ("2026-10-15", "2026-11-15"):
        go_to(llm, day)
        await (await llm.acquire("acme", 60, wait=5.0)).release()
    await end_windows(llm)
    assert month("acme", 9) in llm.courier.mints
    held.settle(10)
    await held.release()
    async with asyncio.timeout(5):
        while month("acme", 9) in llm.courier.mints:
            await end_windows(llm)
            await asyncio.sleep(0.01)


async def test_a_window_that_one_node_is_still_in_is_not_forgotten(town: Town) -> None:
    one, two = await town.open("a", window="month"), await town.open("b", window="month")
    for day in ("2026-09-15", "2026-10-15", "2026-11-15"):
        go_to(one, day)
        await (await one.acquire("acme", 60, wait=5.0)).release()
    go_to(two, "2026-10-15")
    await end_windows(one)
    assert month("acme", 9) in one.courier.mints
    go_to(two, "2026-11-15")
    await end_windows(one)
    assert month("acme", 9) not in one.courier.mints


@pytest.mark.parametrize(
    ("account", "horizon", "over"),
    [
        ("acme@2026-10-01..2026-11-01", "2026-11-01", True),
        ("acme@2026-11-01..2026-12-01", "2026-11-01", False),
        ("acme@2026-02-17..2026-03-17", "2026-03-02", False),
        ("acme@2026-10-31..2026-11-01", "2026-10-31T23:59", False),
        ("acme@2026-10-31T23:00..2026-11-30T23:00", "2026-11-30T23:00", True),
        ("acme", "2026-11-01", False),
        ("acme@2026-10-01..2026-11-01", "1970-01-01", False),
        ("joe@163.com", "2026-11-01", False),
        ("joe@163.com@2026-10-01..2026-11-01", "2026-11-01", True),
    ],
)
def test_a_window_is_over_if_it_ended_by_the_horizon(account: str, horizon: str, over: bool) -> None:
    horizon_s = int(datetime.fromisoformat(horizon).replace(tzinfo=UTC).timestamp())
    assert is_over(account, horizon_s) == over


async def test_a_window_is_an_account_of_its_own(town: Town) -> None:
    llm = await town.open("a", window="month")
    await (await llm.acquire("acme", 100, wait=5.0)).release()
    (account,) = [name for name in llm.courier.mints if name.startswith("acme@")]
    with pytest.raises(Refused) as refused:
        await llm.acquire("acme", 1, wait=5.0)
    assert refused.value.retry_after is not None and refused.value.retry_after < 32 * 86_400
    go_to(llm, "2999-01-15")
    await llm.acquire("acme", 100, wait=5.0)
    later = "acme@2999-01-01..2999-02-01"
    assert account != later and later in llm.courier.mints


async def test_what_is_refused_until_the_window_ends_is_granted_after_retry_after(town: Town) -> None:
    llm = await town.open("a", window="hour")
    wall = llm.courier.world.clock.wall

    def find_window(kind: str, wall_ns: int, zone: str, anchor: Any) -> Window:
        return Window(wall_ns // SECOND_NS, wall_ns // SECOND_NS + 1)

    llm.decider.chains.window_of = find_window
    await asyncio.sleep(1 - wall() % SECOND_NS / SECOND_NS)  # the next has all of its time left
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
    chains, clock = llm.decider.chains, llm.courier.world.clock
    today, real = chains.account("acme"), clock.wall
    for day in ("2999-01-01", "2999-01-02", "2999-01-03"):
        go_to(llm, day)
        await llm.acquire("acme", 100, wait=5.0)
        await end_windows(llm, GRACE_NS)
    clock.wall = real  # type: ignore[method-assign]
    assert chains.account("acme") == today
    assert (await llm.acquire("acme", 70, wait=5.0)).amount == 70
    with pytest.raises(Refused):
        await llm.acquire("acme", 1, wait=5.0)
    await town.close("a")
    with pytest.raises(Refused):
        await (await town.open("a", window="day")).acquire("acme", 1, wait=5.0)


async def test_the_grace_of_a_window_begins_anew_when_the_clock_has_gone_back(town: Town) -> None:
    llm = await town.open("a", window="day")
    await llm.acquire("acme", 100, wait=5.0)
    watch, future_s = llm.decider.watch, 32_000_000_000
    for day in ("2999-01-01", "2999-01-02"):
        go_to(llm, day)
        await llm.acquire("acme", 1, wait=5.0)
        await end_windows(llm, GRACE_NS)
    assert any(horizon_s > future_s for horizon_s in watch._passed)
    go_to(llm, "2026-11-18")
    await end_windows(llm, GRACE_NS)
    assert not any(horizon_s > future_s for horizon_s in watch._passed)


async def test_accounts_of_another_kind_of_window_are_forgotten_when_they_are_over(town: Town) -> None:
    """After a change of the kind they stayed for ever."""
    llm = await town.open("a", window="hour")
    go_to(llm, "2020-01-01T10:30")
    await (await llm.acquire("acme", 1, wait=5.0)).release()
    await town.close("a")
    llm = await town.open("a", window="month")
    await (await llm.acquire("acme", 1, wait=5.0)).release()
    assert "acme@2020-01-01T10:00..2020-01-01T11:00" in llm.courier.mints
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
    round_ = one.courier.book.demand(one.courier.book.ledger.account("acme"))
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


NOVEMBER = Window(1_793_491_200, 1_796_083_200)


class Racing:
    """A store in which, just before an account is looked for, its window is forgotten elsewhere."""

    def __init__(self, store: Any, layout: Layout) -> None:
        self._store = store
        self._layout = layout

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path != self._layout.accounts:
            await accounts.forget(self._store, self._layout, NOVEMBER.end_s)
        found: tuple[bytes, Stat] = await self._store.get(path)
        return found


async def test_an_account_is_not_opened_while_its_window_is_being_forgotten(town: Town) -> None:
    llm = await town.open("a", window="month")
    racing: Any = Racing(town.worlds["a"].store, llm.courier.layout)
    opening = accounts.Opening("acme", NOVEMBER, 100)
    wall_ns = NOVEMBER.begin_s * SECOND_NS
    horizon = await accounts.read_horizon(town.worlds["a"].store, llm.courier.layout)
    found, _ = await accounts.open_accounts(
        racing, llm.courier.layout, [opening], ["a"], (), horizon, wall_ns
    )
    assert found == {}
    assert await list_stored(llm) == []


async def test_a_shorter_expiry_holds_for_open_holds_too(town: Town) -> None:
    llm = await town.open("a")
    grant = await llm.acquire("acme", 40, wait=5.0)
    shorter = QuotaPolicy(name="llm", tenants=TENANTS, hold_expiry_ns=100 * MILLISECOND_NS)
    await llm.reconfigure(shorter)
    async with asyncio.timeout(5):
        while llm.hold_of(grant).used is None:
            await asyncio.sleep(0.05)
    assert llm.hold_of(grant).used == 40
