"""Why a tenant gets what it gets of a quota."""

from __future__ import annotations

from bursar.policy.values import QuotaPolicy
from bursar.quotas.chains import Chains
from bursar.quotas.courier import QuotaCourier
from bursar.resource import Explanation

Figures = dict[str, int | float | str | bool | None]


def explain(
    resource: str, courier: QuotaCourier, chains: Chains, policy: QuotaPolicy, tenant: str
) -> Explanation:
    sentences: list[str] = []
    figures: Figures = {}
    level: str | None = tenant
    for account in chains.find(tenant):
        terms = policy.tenant(level or tenant)
        said, found = _explain_account(courier, account, chains.limit(account) or terms.limit, policy.unit)
        sentences += said
        figures |= {f"{account}.{name}": figure for name, figure in found.items()}
        level = terms.parent
    sentences.append(
        "What is not here is fetched from other nodes; only the root refuses, once it heard them all."
    )
    return Explanation(
        resource=resource, kind="quota", tenant=tenant, sentences=tuple(sentences), figures=figures
    )


def _explain_account(courier: QuotaCourier, name: str, limit: int, unit: str) -> tuple[list[str], Figures]:
    book, now = courier.book, courier.world.clock.now()
    if name not in book.ledger.accounts:
        # Asking makes none: one of a window that is over would be forgotten by nobody.
        none: Figures = dict.fromkeys(("here", "ahead", "held", "spent"), 0)
        told = [f"{name} may use {limit} {unit}; none of them have come to this node."]
        return told, {"limit": limit, **none, "rate": 0.0, "left": None}
    account = book.ledger.account(name)
    demand = book.demand(account)
    here, left = account.unspent + account.block, demand.known_left(now)
    sentences = [f"{name} may use {limit} {unit}; {here} of them are at this node."]
    if account.ahead:
        sentences.append(
            f"{name}: {account.ahead} more are out in lots, and are recalled before it is refused."
        )
    if left is not None:
        sentences.append(f"{name}: the root heard every node and found {left} unspent anywhere.")
    return sentences, {
        "limit": limit,
        "here": here,
        "ahead": account.ahead,
        "held": account.held,
        "spent": account.spent,
        "rate": round(demand.rate(now), 3),
        "left": left,
    }
