"""Why a tenant of a share gets what it gets, in sentences."""

from __future__ import annotations

from bursar.resource import Explanation
from bursar.shares.book import TargetBook
from bursar.shares.bursts import Burst
from bursar.shares.handout import Handout, Line
from bursar.units import write_duration
from bursar.world import SECOND_NS


def explain(name: str, tenant: str, book: TargetBook) -> Explanation:
    line = book.handout.lines.get(tenant)
    record = book.record(tenant)
    bound = book.payback_intervals(tenant)
    figures = {
        "record": record,
        "capacity": book.capacity.per(SECOND_NS),
        "payback_intervals": bound,
    }
    if line is None:
        sentences = [
            f"{tenant} asked for nothing in the last {write_duration(book.interval_ns)}, so it has no rate "
            "and no limit."
        ]
    else:
        figures |= {"demand": line.demand, "tokens": line.final, "rate": line.rate, "weight": line.weight}
        sentences = _explain_share(tenant, line, book.handout, write_duration(book.interval_ns))
    sentences += _explain_record(record, bound)
    burst = book.bursts.get(tenant)
    if burst is not None:
        figures |= {"burst": burst.tokens, "burst_kept": burst.kept}
        sentences += _explain_burst(burst)
    return Explanation(
        resource=name, kind="share", tenant=tenant, sentences=tuple(sentences), figures=figures
    )


def _explain_share(tenant: str, line: Line, handout: Handout, interval: str) -> list[str]:
    weights = handout.lines.sum_of("weight")
    asking = "1 tenant asks" if len(handout.lines) == 1 else f"{len(handout.lines)} tenants ask"
    sentences = [
        f"{asking}; {tenant} has weight {line.weight} of {weights}: "
        f"{line.initial} of the {handout.tokens} tokens of {interval}.",
        f"It wanted {line.demand}.",
    ]
    if line.redistributed < line.initial:
        sentences.append(f"It lends {line.initial - line.redistributed} that it does not need.")
    elif line.redistributed > line.initial:
        sentences.append(f"It borrows {line.redistributed - line.initial} that others do not need.")
    if line.final > line.redistributed:
        sentences.append(f"It is paid back {line.final - line.redistributed} that it lent before.")
    elif line.final < line.redistributed:
        sentences.append(f"It pays back {line.redistributed - line.final} that it borrowed before.")
    sentences.append(f"So it gets {line.final} tokens: {line.rate} a second.")
    return sentences


def _explain_burst(burst: Burst) -> list[str]:
    ends = write_duration(max(0, burst.ends_ns))
    if burst.starts_ns > 0:
        starts = write_duration(burst.starts_ns)
        return [
            f"It announced {burst.tokens} tokens, in {starts}; {burst.kept} that it lent meanwhile are "
            "kept for them."
        ]
    return [f"It announced {burst.tokens} tokens: {burst.left} are still waited for, for {ends}."]


def _explain_record(record: int, bound: int | None) -> list[str]:
    if record > 0:
        said = "" if bound is None else f": within {bound} intervals, if all of them stay backlogged"
        return [f"The others owe it {record} tokens, and pay them back when it needs them{said}."]
    if record < 0:
        return [f"It owes {-record} tokens; lenders call them in when they need them."]
    return []
