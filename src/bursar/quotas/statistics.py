"""What a quota counts, as one frozen struct: this node's part, and the whole as the last survey found it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from bursar.quotas.survey import Line, Total
from bursar.resource.statistics import counter, gauge, label, labelled


class TenantStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant's account of the present window. Units of it move between nodes, and begin anew with each
    window, so nothing here only rises."""

    limit: Annotated[int, gauge("units that it may use in this window, over all nodes")]
    unspent: Annotated[int, gauge("units that are unspent at this node")]
    ahead: Annotated[int, gauge("units that are out in lots of this node, and not known to be spent")]
    held: Annotated[int, gauge("units reserved at this node and not settled")]
    spent: Annotated[int, gauge("units spent at this node in this window")]
    overdrawn: Annotated[int, gauge("units of its overdraft that are held or spent at this node")]
    unpaid: Annotated[int, gauge("units that were used at this node and could not be charged")]


class LedgerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One account in one ledger."""

    unspent: Annotated[int, gauge("units that are unspent in the ledger")]
    held: Annotated[int, gauge("units reserved in the ledger and not settled, or out in lots")]
    spent: Annotated[int, gauge("units spent in the ledger")]
    rate: Annotated[float, gauge("units used a second in the ledger")]


class AccountStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One account over all ledgers that answered."""

    limit: Annotated[int, gauge("units that may be used")]
    unspent: Annotated[int, gauge("units that are unspent")]
    held: Annotated[int, gauge("units reserved and not settled, or out in lots")]
    spent: Annotated[int, gauge("units spent")]
    unpaid: Annotated[int, gauge("units that were used and could not be charged")]
    in_flight: Annotated[int, gauge("units on their way between ledgers")]
    rate: Annotated[float, gauge("units used a second")]
    lasts_s: Annotated[float | None, gauge("how long what is left lasts at this rate", "seconds")]
    written_off: Annotated[int, gauge("units in fenced ledgers that do not answer, or lost with a store")]
    missing: Annotated[int | None, gauge("units that the audit misses: 0, or unknown if a ledger was silent")]
    fenced: Annotated[str, label("why nothing is granted of it; empty if nothing is wrong")]
    ledgers: Annotated[Mapping[str, LedgerStatistics], labelled("ledger")]


class QuotaStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one node knows of a quota."""

    ledger: Annotated[str, label("the ledger that this node keeps")]
    parent: Annotated[str, label("the ledger above it in the tree; empty for the root")]
    window: Annotated[str, label("the present window")]
    unit: Annotated[str, label("what is counted")]
    mode: Annotated[str, label("exact or fast")]
    problem: Annotated[str, label("what keeps this node from granting; empty if nothing does")]
    generation: Annotated[int, gauge("which life of the ledger this is")]
    children: Annotated[int, gauge("ledgers below it in the tree")]
    holds: Annotated[int, gauge("acquisitions that are not settled")]
    keys_forgotten: Annotated[
        int, counter("keys asked for again after the ledger that knew them was written off")
    ]
    keys: Annotated[int, gauge("keys that this node remembers")]
    lots: Annotated[int, gauge("lots that are out")]
    surveys: Annotated[int, counter("surveys of the whole that this node made")]
    warnings: Annotated[int, counter("warnings that much of an account is used, told by this node")]
    tenants: Annotated[Mapping[str, TenantStatistics], labelled("tenant")]
    whole: Annotated[Mapping[str, AccountStatistics], labelled("account")]


def write_total(total: Total, fenced: str) -> AccountStatistics:
    return AccountStatistics(
        limit=total.limit,
        unspent=total.unspent,
        held=total.held,
        spent=total.spent,
        unpaid=total.unpaid,
        in_flight=total.in_flight,
        rate=total.rate,
        lasts_s=total.lasts_s,
        written_off=total.written_off,
        missing=total.missing,
        fenced=fenced,
        ledgers={name: _write_line(line) for name, line in total.ledgers.items()},
    )


def _write_line(line: Line) -> LedgerStatistics:
    return LedgerStatistics(unspent=line.unspent, held=line.held, spent=line.spent, rate=line.rate)
