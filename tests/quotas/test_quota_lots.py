"""Tokens of a quota ahead of use: charged, few, and recalled before anybody is refused."""

from __future__ import annotations

import asyncio

import pytest
from quota_town import Quota, Town, left

from bursar.errors import Refused, Unknown
from bursar.policy.values import QuotaTenant
from bursar.quotas import lots
from bursar.quotas.balances import Account, Lot
from bursar.quotas.blocks import AUTO, LEAST, Block
from bursar.quotas.book import NodeBook
from bursar.quotas.ledger import Ledger
from bursar.quotas.lots import LOT_NS
from bursar.quotas.windows import split_account
from bursar.resource import Granted, Issue, Seen, Ticket
from bursar.world import SECOND_NS

EIGHTH = 1_000 // 8


async def take_lot(llm: Quota, held_by: str, tenant: str = "beta") -> Granted:
    """As a client of the daemon would, with a request of one token."""
    ticket = Ticket(tenant, 1, ahead=2**40, held_by=held_by)
    llm.decider.decide(ticket)
    answer = await asyncio.wait_for(ticket.wait(), 5)
    assert isinstance(answer, Granted)
    return answer


def account(llm: Quota, name: str = "beta") -> Account:
    return llm.courier.book.ledger.account(name)


async def open_fast(town: Town, name: str = "a") -> Quota:
    llm = await town.open(name, mode="fast", block=400)
    await fill_block(llm, "beta")
    return llm


async def fill_block(llm: Quota, tenant: str) -> None:
    """The first request is granted while the block is being charged: a lot comes with the next."""
    grant = await llm.acquire(tenant, 1, wait=5.0)
    grant.settle(0)
    await grant.release()
    llm.hand.end(tenant)
    await llm.courier.wait_durable()


class Holders:
    """What hands lots to clients: recalls them, if they answer."""

    def __init__(self, llm: Quota) -> None:
        self.lots: dict[str, Granted] = {}
        self.asked: list[str] = []
        self.answering = True
        self._llm = llm
        llm.decider.recall = self.recall

    async def take(self, held_by: str, tenant: str = "beta") -> Granted:
        self.lots[held_by] = granted = await take_lot(self._llm, held_by, tenant)
        return granted

    async def recall(self, issue: Issue) -> int | None:
        self.asked.append(issue.held_by)
        if not self.answering:
            return None
        granted = self.lots.pop(issue.held_by)
        self._llm.decider.end_lot(issue.tenant, granted, Seen(), granted.ahead)
        return granted.ahead


async def test_only_fast_mode_has_lots(town: Town) -> None:
    llm = await town.open("a")
    assert not llm.decider.offers.lots
    assert (await take_lot(llm, "c")).ahead == 0


async def test_a_lot_is_spent_here_without_asking_anybody_and_what_is_left_comes_back(town: Town) -> None:
    llm = await open_fast(town)
    async with asyncio.timeout(5):
        while (grant := llm.try_acquire("beta", 1)) is None:
            await asyncio.sleep(0.01)
    out = account(llm).ahead
    assert out > 10
    for _ in range(10):
        grant = llm.try_acquire("beta", 1)
        assert grant is not None and not grant.id, "what comes from a lot cannot be settled elsewhere"
    assert account(llm).ahead == out, "nobody was asked"
    assert llm.hand.end("beta") == out - 10
    assert account(llm).ahead == 0 and account(llm).spent == 10


async def test_a_grant_from_a_lot_is_settled_for_less_before_and_after_its_lot_ended(town: Town) -> None:
    llm = await open_fast(town)
    brought = await llm.acquire("beta", 1, wait=5.0)
    first, second = llm.try_acquire("beta", 5), llm.try_acquire("beta", 6)
    assert first is not None and second is not None
    first.settle(2)
    await first.release()
    llm.hand.end("beta")
    second.settle(1)
    await second.release()
    await brought.release()
    assert await left(llm, "beta") == (996, 0, 4)


async def test_all_lots_together_are_at_most_an_eighth_of_what_is_left(town: Town) -> None:
    llm = await open_fast(town)
    lots = [(await take_lot(llm, f"c{number}")).ahead for number in range(30)]
    assert 0 < sum(lots) == account(llm).ahead <= EIGHTH
    assert sum(lots) > EIGHTH // 2 and sum(1 for lot in lots if lot) > 3, "others find some too"


async def test_a_lot_is_charged_to_the_whole_chain_of_parents(town: Town) -> None:
    llm = await open_fast(town)
    await fill_block(llm, "acme/search")
    granted = await take_lot(llm, "c", "acme/search")
    assert 0 < granted.ahead <= 60 // 8
    assert account(llm, "acme/search").ahead == account(llm, "acme").ahead == granted.ahead
    llm.decider.end_lot("acme/search", granted, Seen(2), granted.ahead - 2)
    assert account(llm, "acme").spent == account(llm, "acme/search").spent == 2


async def test_a_lot_ends_after_a_second_and_what_did_not_come_back_is_spent(town: Town) -> None:
    llm = await open_fast(town)
    now = llm.courier.world.clock.now()
    granted = await take_lot(llm, "gone")
    assert now < granted.until <= llm.courier.world.clock.now() + LOT_NS
    async with asyncio.timeout(10):
        while account(llm).ahead:
            assert account(llm).spent == 0
            await asyncio.sleep(0.02)
    assert llm.courier.world.clock.now() >= granted.until
    assert account(llm).spent == granted.ahead
    llm.decider.end_lot("beta", granted, Seen(), 3)  # late, and true
    assert account(llm).spent == granted.ahead - 3
    llm.decider.take_back("beta", granted, 10**6)
    assert account(llm).spent == 0, "never more than it was"


async def test_a_lot_ends_with_its_window(town: Town) -> None:
    llm = await town.open("a", mode="fast", window="month")
    await (await llm.acquire("beta", 1, wait=5.0)).release()
    llm.hand.end("beta")
    window = split_account(llm.decider.chains.account("beta"))[1]
    assert window is not None
    ends_s = window.end_s
    llm.courier.world.clock.wall = lambda: ends_s * SECOND_NS - LOT_NS // 10  # type: ignore[method-assign]
    granted = await take_lot(llm, "c")
    assert granted.ahead and granted.until <= llm.courier.world.clock.now() + LOT_NS // 10


async def test_demand_is_what_was_spent_of_lots(town: Town) -> None:
    llm = await open_fast(town)
    granted = await take_lot(llm, "c")
    assert account(llm).used == 1, "the request that brought it"
    llm.decider.observe("beta", granted, Seen(7))
    assert account(llm).used == 8 and account(llm).ahead == granted.ahead - 7


def make_book(units: int, block: int) -> NodeBook:
    """A node below another, with a block of its units charged ahead."""
    book = NodeBook("b", block=block)
    book.open(0, 1)
    book.join(0, "a", (), ("a", "b"))
    book.mint(0, "beta", [("b", units)])
    book.synced(0, book.ledger.written)
    book.request(0, "t", ("beta",), 1)
    book.synced(0, book.ledger.written)
    return book


def test_nobody_gets_a_lot_while_somebody_waits() -> None:
    book = make_book(1_000, 400)
    book.request(0, "t", ("beta",), 2_000)
    assert book.requests and book.ledger.account("beta").block > 100
    assert lots.issue(book, 0, ("beta",), 100, until=LOT_NS) == (None, [])
    book.cancel(0, next(iter(book.requests)))
    assert lots.issue(book, 0, ("beta",), 100, until=LOT_NS)[0] is not None


def test_lots_and_block_together_are_never_more_than_a_block() -> None:
    book = make_book(1_000, 50)
    lot, _ = lots.issue(book, 0, ("beta",), 100, until=LOT_NS)
    assert lot is not None and lot.size > 20
    for _ in range(200):
        book.request(0, "t", ("beta",), 3)
        book.synced(0, book.ledger.written)
        account = book.ledger.account("beta")
        assert account.block + account.ahead <= 50


async def test_lots_are_recalled_before_anybody_is_refused(town: Town) -> None:
    llm = await open_fast(town)
    holders = Holders(llm)
    lots = [await holders.take(name) for name in ("c", "d")]
    rest = 1_000 - len(lots)  # what the two requests took
    grant = await llm.acquire("beta", rest, wait=5.0)
    assert grant.amount == rest and sorted(holders.asked) == ["c", "d"]
    with pytest.raises(Refused) as refused:
        await llm.acquire("beta", 1, wait=5.0)
    assert refused.value.remaining == 0


async def test_a_recall_without_an_answer_is_unknown_until_the_lot_has_ended(town: Town) -> None:
    llm = await open_fast(town)
    holders = Holders(llm)
    holders.answering = False
    granted = await holders.take("c")
    with pytest.raises(Unknown):
        await llm.acquire("beta", 999)
    assert holders.asked
    with pytest.raises(Refused) as refused:
        await llm.acquire("beta", 999, wait=5.0)
    assert refused.value.remaining == 999 - granted.ahead
    assert llm.courier.world.clock.now() >= granted.until


async def test_lots_that_another_node_handed_out_are_recalled_too(town: Town) -> None:
    one, two = await open_fast(town), await open_fast(town, "b")
    got = await two.acquire("beta", 200, wait=5.0)
    got.settle(0)
    await got.release()
    two.hand.end("beta")
    holders = Holders(two)
    assert (await holders.take("c")).ahead
    assert (await one.acquire("beta", 999, wait=5.0)).amount == 999
    assert holders.asked == ["c"]


async def test_a_cut_recalls_the_lots_of_its_account(town: Town) -> None:
    llm = await open_fast(town)
    holders = Holders(llm)
    await holders.take("c")
    await llm.verb("set_limit", tenant="beta", limit=10)
    async with asyncio.timeout(5):
        while holders.asked != ["c"] or account(llm).unspent + account(llm).block != 9:
            await asyncio.sleep(0.01)
    with pytest.raises(Refused):
        await llm.acquire("beta", 10, wait=5.0)


async def test_a_clean_stop_takes_lots_back(town: Town) -> None:
    llm = await open_fast(town)
    holders = Holders(llm)
    await holders.take("c")
    await town.close("a")
    assert holders.asked == ["c"]
    llm = await town.open("a", mode="fast", block=400)
    assert await left(llm, "beta") == (999, 1, 0)


def test_a_lot_never_gives_back_more_than_it_was() -> None:
    ledger = Ledger("a")
    ledger.open(1)
    ledger.mint("acme", 1, 100)
    ledger.synced(ledger.written)
    ledger.charge_block(ledger.account("acme"), 50)
    ledger.synced(ledger.written)
    lot: Lot = ledger.issue_lot([ledger.account("acme")], 20, until=0)
    ledger.spend_lot(lot, 30)
    assert (ledger.account("acme").spent, ledger.account("acme").held) == (20, 0)
    assert [ledger.return_lot(lot, 15), ledger.return_lot(lot, 15)] == [15, 5]
    assert (ledger.account("acme").spent, ledger.account("acme").block) == (0, 50)


def test_a_block_grows_by_what_was_missed_and_shrinks_when_it_is_not_used() -> None:
    block = Block(AUTO)
    block.grow(5_000, 1_000_000)
    assert block.size == LEAST + 5_000
    block.grow(10**9, 800_000)
    assert block.size == 100_000, "an eighth of what is left at most"
    for second, size in ((1, 50_000), (2, 25_000), (2, 25_000), (3, 12_500)):
        block.shrink(second * SECOND_NS, 0)
        assert block.size == size
    block.shrink(4 * SECOND_NS, 5_000)
    assert block.size == 12_500, "it was used"
    fixed = Block(40)
    fixed.grow(1_000, 10**6)
    fixed.shrink(SECOND_NS, 0)
    assert fixed.size == 40


async def test_bursts_beyond_a_block_find_their_units_ready_soon(town: Town) -> None:
    llm = await town.open("a", mode="fast", tenants={"acme": QuotaTenant(limit=1_000_000)})
    await (await llm.acquire("acme", 1)).release()
    async with asyncio.timeout(20):
        while not all(llm.try_acquire("acme") for _ in range(5_000)):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.1)
        granted = sum(llm.try_acquire("acme") is not None for _ in range(5_000))
    assert granted > 1_000, "a block of the least size has no more"
