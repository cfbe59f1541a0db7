"""The budget as its users meet it, on real nodes."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from quota_town import Quota, Town, left

from bursar.errors import JournalError, Refused, Unknown, UsageError
from bursar.quotas import accounts
from bursar.world import MILLISECOND_NS, SECOND_NS


async def test_what_was_reserved_and_not_used_is_given_back(town: Town) -> None:
    llm = await town.open("a")
    async with llm.acquire("acme", 40, wait=5.0) as grant:
        assert await left(llm) == (60, 40, 0)
        grant.settle(25)
    assert await left(llm) == (75, 0, 25)


async def test_without_settle_everything_reserved_is_spent(town: Town) -> None:
    llm = await town.open("a")
    async with llm.acquire("acme", 40, wait=5.0):
        pass
    assert await left(llm) == (60, 0, 40)


async def test_work_that_fails_pays_nothing(town: Town) -> None:
    llm = await town.open("a")
    with pytest.raises(RuntimeError):
        async with llm.acquire("acme", 40, wait=5.0):
            raise RuntimeError("the model is down")
    assert await left(llm) == (100, 0, 0)


async def test_a_refusal_says_how_much_is_left(town: Town) -> None:
    llm = await town.open("a")
    await (await llm.acquire("acme", 95, wait=5.0)).release()
    with pytest.raises(Refused) as refused:
        await llm.acquire("acme", 6, wait=5.0)
    assert (refused.value.limit, refused.value.remaining) == (100, 5)
    await llm.acquire("acme", 5, wait=5.0)


async def test_nested_tenants_are_charged_at_all_levels_or_at_none(town: Town) -> None:
    llm = await town.open("a")
    await (await llm.acquire("acme/search", 50, wait=5.0)).release()
    assert await left(llm, "acme/search") == (10, 0, 50)
    assert await left(llm, "acme") == (50, 0, 50)
    with pytest.raises(Refused, match="acme/search"):
        await llm.acquire("acme/search", 11, wait=5.0)
    await (await llm.acquire("acme", 45, wait=5.0)).release()
    with pytest.raises(Refused, match="acme: 6 asked for, 5 of 100 left"):
        await llm.acquire("acme/search", 6, wait=5.0)
    assert await left(llm, "acme/search") == (10, 0, 50)


async def test_whoever_gives_up_before_the_store_has_answered_is_told_so(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = await town.open("a")

    async def answers_never(*arguments: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(llm.courier, "open_account", answers_never)
    with pytest.raises(Unknown, match="the account of acme could not be opened: the store has not answered"):
        await llm.acquire("acme", 1)


async def test_a_hold_that_nobody_ends_is_charged_in_full(town: Town) -> None:
    llm = await town.open("a", hold_expiry_ns=100 * MILLISECOND_NS)
    grant = await llm.acquire("acme", 40, wait=5.0)
    async with asyncio.timeout(5):
        while llm.hold_of(grant).used is None:
            await asyncio.sleep(0.05)
    grant.settle(1)
    with pytest.raises(UsageError, match=r"after it had expired: 40 of the 40 .* were charged"):
        await grant.release()
    assert await left(llm) == (60, 0, 40)


async def test_a_storm_of_nonsense_leaves_a_ledger_that_adds_up(town: Town) -> None:
    llm = await town.open("a")
    grant = await llm.acquire("acme", 10, wait=5.0)
    for used in (11, 2**63, -1, 1.5, True, "3"):
        with pytest.raises(UsageError):
            grant.settle(used)  # type: ignore[arg-type]
    await grant.release()
    for amount in (0, -5, 2**63, 2**70, 1.0, True, "1", None):
        with pytest.raises(UsageError):
            await llm.acquire("acme", amount, wait=5.0)  # type: ignore[arg-type]
    for tenant in ("nobody", "acme/"):
        with pytest.raises(Refused, match="has no tenant"):
            await llm.acquire(tenant, 1, wait=5.0)
    for tenant in ("", "a\nb", "x" * 300, None):
        with pytest.raises(UsageError):
            await llm.acquire(tenant, 1, wait=5.0)  # type: ignore[arg-type]
    for key in ("", "k" * 300, "a\x00b", 7):
        with pytest.raises(UsageError):
            await llm.acquire("acme", 1, key=key, wait=5.0)  # type: ignore[arg-type]
    with pytest.raises(Refused):
        await llm.acquire("acme", 2**63 - 1, wait=5.0)
    storm = [llm.acquire("acme", 3, key=f"k{number % 5}", wait=5.0).__aenter__() for number in range(200)]
    grants = await asyncio.gather(*storm)
    assert sum(not held.replayed for held in grants) == 5
    for held in grants:
        held.settle(2)
        await held.release()
    with pytest.raises(UsageError, match="released already"):
        grants[0].settle(1)
    assert await left(llm) == (80, 0, 20)


async def test_two_nodes_share_one_quota(town: Town) -> None:
    one = await town.open("a")
    two = await town.open("b")
    granted = 0

    async def use(llm: Quota) -> int:
        used = 0
        while True:
            try:
                async with llm.acquire("beta", 7, wait=5.0):
                    used += 7
            except Refused as refused:
                assert refused.remaining is not None and refused.remaining < 7
                return used

    granted = sum(await asyncio.gather(use(one), use(two)))
    assert granted == 1_000 - 1_000 % 7
    assert await left(one, "beta") == (1_000 % 7, 0, granted)


async def test_units_outlive_a_node_that_is_dropped(town: Town) -> None:
    llm = await town.open("a")
    async with llm.acquire("acme", 30, wait=5.0):
        pass
    held = await llm.acquire("acme", 20, wait=5.0)
    await town.close("a", cleanly=False)
    llm = await town.open("a")
    assert held.amount == 20 and await left(llm) == (50, 20, 30)


async def test_fast_mode_loses_at_most_a_block_when_a_node_is_dropped(town: Town) -> None:
    llm = await town.open("a", mode="fast", block=50)
    async with asyncio.timeout(5):
        while (grant := llm.try_acquire("beta", 5)) is None:
            await asyncio.sleep(0.01)
    await grant.release()
    await asyncio.sleep(0.05)
    await town.close("a", cleanly=False)
    llm = await town.open("a", mode="fast", block=50)
    assert await llm.acquire("beta", 1, wait=5.0)
    unspent, held, spent = await left(llm, "beta")
    assert unspent + held + spent == 1_000 and 5 <= spent <= 55


async def test_fast_mode_stopped_cleanly_loses_nothing(town: Town) -> None:
    llm = await town.open("a", mode="fast", block=50)
    grant = await llm.acquire("beta", 5, wait=5.0)
    grant.settle(3)
    await grant.release()
    await town.close("a")
    llm = await town.open("a")
    await (await llm.acquire("beta", 1, wait=5.0)).release()
    assert await left(llm, "beta") == (996, 0, 4)


async def test_a_block_that_is_being_charged_when_its_node_stops_is_given_back(town: Town) -> None:
    llm = await town.open("a", mode="fast", block=50)
    await llm.acquire("beta", 40, wait=5.0)  # the next block is on its way to the disk
    await town.close("a")
    llm = await town.open("a", mode="fast", block=50)
    assert await left(llm, "beta") == (960, 40, 0)


async def test_exact_mode_does_not_grant_without_its_journal(town: Town) -> None:
    llm = await town.open("a")
    with pytest.raises(UsageError, match="mode = fast"):
        llm.try_acquire("acme", 1)


async def test_warnings_are_told_once(town: Town) -> None:
    llm = await town.open("a")
    told: list[tuple[str, int]] = []
    llm.decider.on_warning(lambda account, percent: told.append((account, percent)))
    await (await llm.acquire("acme", 96, wait=5.0)).release()
    async with asyncio.timeout(10):
        while len(told) < 2:
            await asyncio.sleep(0.05)
    assert told == [("acme", 80), ("acme", 95)]


async def test_shadow_decides_and_refuses_nobody(town: Town) -> None:
    llm = await town.open("a", shadow=True)
    async with llm.acquire("acme", 100, wait=5.0) as grant:
        assert grant.fallback == "shadow", "the caller goes before it is on disk"
        async with asyncio.timeout(5):
            while not any(hold.expires_at for hold in llm.courier.book.ledger.holds.values()):
                await asyncio.sleep(0.01)  # its request, which stayed behind, is being decided
    assert await left(llm) == (0, 0, 100)
    async with llm.acquire("acme", 50) as grant:
        assert grant.fallback == "shadow"
    async with asyncio.timeout(5):
        while (await llm.statistics()).tenants["acme"].would_refuse != 50:
            await asyncio.sleep(0.02)
    assert await left(llm) == (0, 0, 100)


async def test_a_restored_copy_of_a_ledger_is_refused(town: Town) -> None:
    llm = await town.open("a")
    await (await llm.acquire("acme", 10, wait=5.0)).release()
    await town.close("a")
    copy = town.folder / "copy"
    shutil.copytree(town.folder / "a", copy)
    llm = await town.open("a")
    await (await llm.acquire("acme", 50, wait=5.0)).release()
    await town.close("a")
    shutil.rmtree(town.folder / "a")
    shutil.copytree(copy, town.folder / "a")
    with pytest.raises(JournalError, match="is a copy of generation"):
        await town.open("a")


async def test_a_node_without_its_ledger_begins_another_only_when_fenced(town: Town) -> None:
    llm = await town.open("a")
    other = await town.open("b")
    await (await llm.acquire("acme", 10, wait=5.0)).release()
    layout = other.courier.layout
    await town.close("a")
    shutil.move(town.folder / "a", town.folder / "lost")
    with pytest.raises(JournalError, match="bursar quota fence a"):
        await town.open("a")
    await town.worlds["b"].store.create(layout.fence("a"))
    again = await town.open("a")
    assert again.courier.book.identity == "a~2"
    with pytest.raises(Refused):  # the units of the fenced ledger are written off: decided, not unknown
        await again.acquire("acme", 100, wait=5.0)
    await town.close("a")
    shutil.rmtree(town.folder / "a")
    shutil.move(town.folder / "lost", town.folder / "a")
    back = await town.open("a")  # its own ledger brings them back
    assert back.courier.book.identity == "a"
    async with asyncio.timeout(10):
        while "a" not in (other.courier.book.members or ()):
            await asyncio.sleep(0.02)
    grant = await back.acquire("acme", 60, wait=5.0)
    assert grant.amount == 60


async def test_explain_and_statistics_say_where_the_units_are(town: Town) -> None:
    llm = await town.open("a")
    await (await llm.acquire("acme/search", 10, wait=5.0)).release()
    explanation = await llm.explain("acme/search")
    assert any("acme may use 100 units" in sentence for sentence in explanation.sentences)
    assert explanation.figures["acme/search.spent"] == 10
    here = llm.decider.statistics()
    assert here.tenants["acme/search"].spent == 10 and here.tenants["beta"].limit == 1_000
    async with asyncio.timeout(5):
        while not llm.decider.statistics().whole:
            await asyncio.sleep(0.02)
    whole = llm.decider.statistics().whole["acme"]
    assert (whole.spent, whole.missing, whole.ledgers["a"].unspent) == (10, 0, 90)


async def test_waiting_ends_with_unknown_when_a_node_cannot_be_reached(town: Town) -> None:
    one = await town.open("a")
    two = await town.open("b")
    await (await one.acquire("beta", 10, wait=5.0)).release()
    await accounts.top_up(town.worlds["a"].store, one.courier.layout, "beta", 1_000, ["b"])
    await two.courier.registry.read("beta")  # a node takes what was minted for it when it is asked
    async with asyncio.timeout(10):
        while two.courier.book.ledger.account("beta").unspent < 1_000 or "b" not in (
            one.courier.book.members or ()
        ):
            await asyncio.sleep(0.02)
        while one.decider.chains.limit("beta") < 2_000:  # it looks once a second
            await asyncio.sleep(0.02)
    await town.close("b")
    here = one.courier.book.ledger.account("beta").unspent
    with pytest.raises(Unknown):
        await one.acquire("beta", here + 1, wait=0.5)
    began = one.courier.world.clock.now()
    with pytest.raises(Unknown):
        await one.acquire("beta", here + 1)
    assert one.courier.world.clock.now() - began < SECOND_NS
