"""Why a tenant of a pool gets what it gets, in sentences."""

from __future__ import annotations

import msgspec

from bursar.policy import PoolPolicy
from bursar.policy.values import POOL_INTERVALS
from bursar.pools.engine import Engine
from bursar.pools.monitor_book import MonitorBook
from bursar.pools.statistics import PoolTenantStatistics, read_tenant, write_short
from bursar.resource import Explanation
from bursar.world import SECOND_NS


def _explain_nodes(policy: PoolPolicy, now: PoolTenantStatistics) -> list[str]:
    if not policy.nodes:
        return []
    return [
        f"That is over {len(policy.nodes)} nodes, and follows its requests: {now.reservation} tokens were "
        f"placed here for this interval of {policy.period_ns / SECOND_NS:g} s."
    ]


def explain(
    name: str,
    tenant: str,
    policy: PoolPolicy,
    engine: Engine,
    monitor: MonitorBook,
    *,
    short: int,
    alone: bool,
) -> Explanation:
    now = read_tenant(engine)
    terms = policy.tenant(tenant)
    most = "no limit" if terms.limit is None else f"a limit of {terms.limit}"
    sentences = [
        f"{tenant} has a reservation of {terms.reservation} and {most}, in periods of "
        f"{policy.period_ns * (POOL_INTERVALS if policy.nodes else 1) / SECOND_NS:g} s.",
        *([f"{write_short(tenant, short)}."] if short else []),
        *_explain_nodes(policy, now),
        f"In this period it spent {now.spent}; {now.reserve} reserved tokens are left, and {now.hand} that "
        "it took from the pool.",
    ]
    if now.ahead:
        sentences.append(f"Its callers hold {now.ahead} ahead of use.")
    if now.given_up:
        sentences.append(f"It gave up {now.given_up} that it did not use in time.")
    if now.denied:
        sentences.append("It asked the pool for more than there was.")
    if tenant in monitor.alerts():
        sentences.append("It keeps reserving more than it uses: lower its reservation.")
    if alone:
        sentences.append(
            f"No monitor opens periods: {tenant} goes on by itself "
            f"(without_bursar = {policy.without_bursar.mode})."
        )
    figures = {**msgspec.structs.asdict(now), "capacity": monitor.accounts.capacity}
    return Explanation(resource=name, kind="pool", tenant=tenant, sentences=tuple(sentences), figures=figures)
