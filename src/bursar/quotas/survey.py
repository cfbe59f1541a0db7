"""Who holds what, where, and does it add up: asked of every node, for people and for warnings.

The audit (section IV-C of the paper compares used and unused units with the quota, and takes the
difference for lost units to be handed out again): here the difference must be zero, because units
in flight are in somebody's outbox, and whatever it is, nothing is minted for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from bursar.errors import NetworkError
from bursar.quotas.book import NodeBook
from bursar.quotas.requests import node_of
from bursar.world import MILLISECOND_NS, Message, World

ANSWER_NS = 500 * MILLISECOND_NS


class Line(msgspec.Struct, frozen=True):
    """One account in one ledger. `debt`: of a cut, what had been used already. `channels`: (peer,
    last sent, last received, outbox)."""

    unspent: int
    held: int
    spent: int
    debt: int
    rate: float
    mints: int
    channels: tuple[tuple[str, int, int, tuple[tuple[int, int], ...]], ...]


class Ask(Message, frozen=True):
    """What is in your ledger?"""


class Report(Message, frozen=True):
    """`window`: the one that the node is in, by its clock."""

    ledger: str
    window: str
    accounts: Mapping[str, Line]


class Total(msgspec.Struct, frozen=True):
    """One account over all ledgers that answered. `missing` units are neither there nor in
    flight: None unless everybody answered, and then zero."""

    limit: int
    unspent: int
    held: int
    spent: int
    in_flight: int
    rate: float
    missing: int | None
    ledgers: Mapping[str, Line]

    @property
    def used(self) -> int:
        return self.held + self.spent

    @property
    def lasts_s(self) -> float | None:
        return (self.unspent + self.in_flight) / self.rate if self.rate > 0 else None


def make_report(book: NodeBook, now: int, window: str) -> Report:
    lines = {}
    for name, account in book.ledger.accounts.items():
        round_ = book.round(account)
        channels = tuple(
            (peer, channel.sent, channel.received, tuple((n, a) for n, (a, _) in channel.outbox.items()))
            for peer, channel in account.channels.items()
        )
        lines[name] = Line(
            unspent=account.unspent + account.block + round_.charging,
            held=account.held,
            spent=account.spent - round_.charging,
            debt=account.debt,
            rate=round_.rate(now),
            mints=round_.mints,
            channels=channels,
        )
    return Report(book.identity, window, lines)


async def collect(world: World, topic: str, book: NodeBook, window: str) -> dict[str, Report]:
    """The reports of all ledgers that answer, by ledger: all are asked at once."""
    reports = {book.identity: make_report(book, world.clock.now(), window)}
    others = sorted(((book.members or frozenset()) | book.fenced) - {book.identity})
    for ledger, report in zip(
        others, await asyncio.gather(*(_ask(world, topic, o) for o in others)), strict=True
    ):
        if report is not None and report.ledger == ledger:
            reports[ledger] = report
    return reports


async def _ask(world: World, topic: str, ledger: str) -> Report | None:
    try:
        report: Report = await world.network.call(node_of(ledger), topic, Ask(), Report, ANSWER_NS)
    except NetworkError:
        return None
    return report


def add_up(account: str, limit: int, reports: Mapping[str, Report], members: Iterable[str]) -> Total:
    """The account over all ledgers. Reports are not of one moment: a transfer that one report has
    sent and another not yet received is in flight; the reverse shows as units missing below zero,
    and the next survey does not find them."""
    lines = {name: report.accounts[account] for name, report in reports.items() if account in report.accounts}
    in_flight = sum(_under_way(ledger, line, lines) for ledger, line in lines.items())
    sums = {
        field: sum(getattr(line, field) for line in lines.values()) for field in ("unspent", "held", "spent")
    }
    whole = set(members) <= set(reports)
    minted = limit + sum(line.debt for line in lines.values())
    missing = minted - sum(sums.values()) - in_flight if whole else None
    rate = sum(line.rate for line in lines.values())
    return Total(limit=limit, in_flight=in_flight, rate=rate, missing=missing, ledgers=lines, **sums)


def _under_way(ledger: str, line: Line, lines: Mapping[str, Line]) -> int:
    units = 0
    for peer, _, _, outbox in line.channels:
        there = lines.get(peer)
        received = 0
        if there is not None:
            received = next((got for source, _, got, _ in there.channels if source == ledger), 0)
        units += sum(amount for number, amount in outbox if number > received)
    return units
