"""The enforcer that a policy names, with the real `lctl`."""

from __future__ import annotations

from pathlib import Path

from bursar.errors import UsageError
from bursar.integrations.lustre.enforcer import Lctl, LustreEnforcer
from bursar.integrations.lustre.jobs import JobNodes
from bursar.policy.values import SharePolicy


def open_for(name: str, policy: SharePolicy, folder: Path) -> LustreEnforcer:
    if policy.costs != "requests":
        raise UsageError(
            f'[resource.{name}] a token of enforce = "lustre" is an RPC: leave costs and bytes out'
        )
    jobs = None if policy.job_nodes is None else JobNodes(policy.job_nodes)
    return LustreEnforcer(Lctl(), folder / f"lustre-{name}", jobs)
