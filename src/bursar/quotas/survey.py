"""Who holds what, where, and does it add up: asked of every node, for people and for warnings.

The audit (section IV-C of the paper compares used and unused units with the quota, and takes the
difference for lost units to be handed out again): here the difference must be zero, because units
in flight are in somebody's outbox, and whatever it is, nothing is minted for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from bursar.errors import NetworkError
from bursar.quotas.book import NodeBook
from bursar.quotas.layout import ELSEWHERE, Mints, is_ledger
from bursar.quotas.requests import node_of
from bursar.world import MILLISECOND_NS, Message, World

ANSWER_NS = 500 * MILLISECOND_NS


class Line(msgspec.Struct, frozen=True):
    """One account in one ledger. `debt`: of a cut, what had been used already. `channels`: (peer,
    last sent, last received, outbox). `unpaid`: what was used and could not be charged."""

    unspent: int
    held: int
    spent: int
    debt: int
    rate: float
    mints: int
    carried: int
    channels: tuple[tuple[str, int, int, tuple[tuple[int, int], ...]], ...]
    unpaid: int = 0


class Ask(Message, frozen=True):
    """What is in your ledger of these tenants?"""

    tenants: tuple[str, ...]


class Report(Message, frozen=True):
    """`wall_ns`: what the node's wall clock says."""

    ledger: str
    wall_ns: int
    accounts: Mapping[str, Line]


class Total(msgspec.Struct, frozen=True):
    """One account over all ledgers that answered. `missing` units are neither there nor in flight: None
    unless everybody answered for one and the same state, and then zero. `written_off` were in fenced ledgers
    that did not answer, or were lost with an earlier store."""

    limit: int
    unspent: int
    held: int
    spent: int
    in_flight: int
    rate: float
    written_off: int
    missing: int | None
    ledgers: Mapping[str, Line]
    unpaid: int = 0

    @property
    def used(self) -> int:
        return self.held + self.spent

    @property
    def lasts_s(self) -> float | None:
        return (self.unspent + self.in_flight) / self.rate if self.rate > 0 else None


def make_report(book: NodeBook, world: World, asked: Iterable[str]) -> Report:
    lines, now = {}, world.clock.now()
    for name in asked:
        account = book.ledger.accounts.get(name)
        if account is None:
            continue
        demand = book.demand(account)
        channels = tuple(
            (peer, channel.sent, channel.received, tuple((n, a) for n, (a, _) in channel.outbox.items()))
            for peer, channel in account.channels.items()
        )
        lines[name] = Line(
            unspent=account.unspent + account.block + demand.charging,
            held=account.held,
            spent=account.spent - demand.charging,
            debt=account.debt,
            rate=demand.rate(now),
            mints=account.mints,
            carried=account.carried,
            channels=channels,
            unpaid=account.unpaid,
        )
    return Report(book.identity, world.clock.wall(), lines)


async def collect(world: World, topic: str, book: NodeBook, tenants: Sequence[str]) -> dict[str, Report]:
    """The reports of all other ledgers that answer, by ledger: all are asked at once."""
    reports: dict[str, Report] = {}
    others = sorted(((book.members or frozenset()) | book.fenced) - {book.identity})
    asking = (_ask(world, topic, other, Ask(tuple(tenants))) for other in others)
    for ledger, report in zip(others, await asyncio.gather(*asking), strict=True):
        if report is not None and report.ledger == ledger:
            reports[ledger] = report
    return reports


async def _ask(world: World, topic: str, ledger: str, ask: Ask) -> Report | None:
    try:
        report: Report = await world.network.call(node_of(ledger), topic, ask, Report, ANSWER_NS)
    except NetworkError:
        return None
    return report


def add_up(
    account: str,
    mints: Mints,
    reports: Mapping[str, Report],
    members: frozenset[str],
    fenced: frozenset[str],
) -> Total:
    """The account over all ledgers: `members`, and those that are `fenced`. Reports are not of one moment:
    where one has what another does not know to have sent, nothing can be said about what is missing."""
    lines = {name: report.accounts[account] for name, report in reports.items() if account in report.accounts}
    silent = (members | fenced) - reports.keys()
    in_flight = sum(_under_way(ledger, line, lines, silent) for ledger, line in lines.items())
    in_flight += _count_untaken(mints, lines, reports)
    fields = ("unspent", "held", "spent")
    sums = {field: sum(getattr(line, field) for line in lines.values()) for field in fields}
    carries = any(ledger == ELSEWHERE for ledger, _ in mints)
    minted = _count_minted(mints, lines.values(), silent, carries)
    found: int | None = minted - sum(sums.values()) - in_flight
    if not silent <= fenced or not _is_one_state(lines, mints, reports, silent):
        found = None
    if carries and silent and found is not None and found < 0:
        found = None  # what a silent ledger had brought along may have been passed on, and counts nowhere
    written_off = max(0, found or 0) if silent or carries else 0
    return Total(
        limit=sum(amount for _, amount in mints),
        in_flight=in_flight,
        rate=sum(line.rate for line in lines.values()),
        written_off=written_off,
        missing=None if found is None else found - written_off,
        ledgers=lines,
        unpaid=sum(line.unpaid for line in lines.values()),
        **sums,
    )


def _count_minted(mints: Mints, lines: Iterable[Line], silent: Collection[str], carries: bool) -> int:
    """What there is at most: of earlier epochs of the store, what the ledgers brought along. (What was under
    way then may be counted at both ends.) A cut that a silent ledger was to take may be lost with it."""
    minted = sum(
        amount for ledger, amount in mints if ledger != ELSEWHERE and not (amount < 0 and ledger in silent)
    )
    return minted + sum(line.debt + (line.carried if carries else 0) for line in lines)


def _count_untaken(mints: Mints, lines: Mapping[str, Line], reports: Collection[str]) -> int:
    """What is minted for a ledger that has not read of it: it will when it is asked for the account."""
    return sum(
        amount
        for number, (ledger, amount) in enumerate(mints, start=1)
        if ledger in reports and (ledger not in lines or number > lines[ledger].mints)
    )


def _is_one_state(
    lines: Mapping[str, Line], mints: Mints, reports: Collection[str], silent: Collection[str]
) -> bool:
    """Whether all who were minted for have spoken (or are silent), nobody knows more of the mints, and no
    channel's receiver knows of more, or its sender of more acknowledgements, than the other end does."""
    if not all(line.mints <= len(mints) for line in lines.values()):
        return False
    if any(is_ledger(ledger) and ledger not in reports and ledger not in silent for ledger, _ in mints):
        return False
    for ledger, line in lines.items():
        for peer, sent, got, outbox in line.channels:
            there = lines.get(peer)
            if there is None:
                if got and peer not in silent:
                    return False
                continue
            received = _received(there, ledger)
            if not sent - len(outbox) <= received <= sent:
                return False
    return True


def _received(line: Line, source: str) -> int:
    return next((got for peer, _, got, _ in line.channels if peer == source), 0)


def _under_way(ledger: str, line: Line, lines: Mapping[str, Line], silent: frozenset[str] | set[str]) -> int:
    """What is on its way to a ledger that does not answer may have been passed on from there: it does not
    count."""
    units = 0
    for peer, _, _, outbox in line.channels:
        if peer not in silent:
            received = _received(lines[peer], ledger) if peer in lines else 0
            units += sum(amount for number, amount in outbox if number > received)
    return units
