"""Overdrafts: what a tenant may owe beyond its limit, for what was used already.

An overdraft is an account beside the tenant's own, with a limit of its own. So its units are minted, split
over the nodes, fetched, cut, surveyed and forgotten with their window like all others, and nothing that is
promised of an account needs to be proved of it again. Only a hold that grows is ever charged to it
(`growing`); nobody can ask for it, because no tenant can have such a name: it has an empty part, which no
name in a policy may have, and a star, which nobody under a template may have.
"""

from __future__ import annotations

from bursar.policy.names import OVERDRAFT
from bursar.quotas.windows import account_name, split_account


def overdraft_of(account: str) -> str:
    """The overdraft of a tenant's account: "acme//*overdraft@2026-11"."""
    tenant, window = split_account(account)
    return account_name(tenant + OVERDRAFT, window)


def owner_of(tenant: str) -> str:
    """Whose the overdraft is; "" if that is no overdraft."""
    return tenant.removesuffix(OVERDRAFT) if tenant.endswith(OVERDRAFT) else ""
