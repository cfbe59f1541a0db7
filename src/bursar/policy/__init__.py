"""The policy: what was promised to whom, read from TOML, checked, frozen.

`load` reads a file, `parse` a text, `build` a table; each returns a Policy or raises PolicyError
with everything that is wrong, where it stands, and what to write instead. `values` holds the
frozen values, `keys` every key of the file, once, for both the reading and the JSON Schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from bursar.policy.values import (
    KINDS,
    AlertPolicy,
    ClaimPolicy,
    ClaimTenant,
    DaemonPolicy,
    Kind,
    Policy,
    PoolPolicy,
    PoolTenant,
    QuotaPolicy,
    QuotaTenant,
    RatePolicy,
    RateTenant,
    ResourcePolicy,
    Server,
    SharePolicy,
    ShareTenant,
    Table,
    Tls,
    WithoutBursar,
)
from bursar.units import Rate

__all__ = [
    "KINDS",
    "AlertPolicy",
    "ClaimPolicy",
    "ClaimTenant",
    "DaemonPolicy",
    "Kind",
    "Policy",
    "PoolPolicy",
    "PoolTenant",
    "QuotaPolicy",
    "QuotaTenant",
    "Rate",
    "RatePolicy",
    "RateTenant",
    "ResourcePolicy",
    "Server",
    "SharePolicy",
    "ShareTenant",
    "Table",
    "Tls",
    "WithoutBursar",
    "build",
    "load",
    "parse",
    "settle",
]


# The reader is imported by those who read: everyone else needs the values alone, at once.


def load(path: str | PathLike[str]) -> Policy:
    """Read a policy file. Raises PolicyError, which lists every problem."""
    from bursar.policy.reading import load

    return load(path)


def parse(text: str, source: str = "policy") -> Policy:
    """Read a policy from TOML text; `source` is what messages call it. Raises PolicyError."""
    from bursar.policy.reading import parse

    return parse(text, source)


def build(table: Mapping[str, Any], source: str = "policy") -> Policy:
    """A policy from the table that TOML would have given. Raises PolicyError."""
    from bursar.policy.reading import build

    return build(table, source)


def settle(policy: Policy | None, settings: Mapping[str, Any], store: str | None = None) -> Policy:
    """A policy with settings of the node's own in place of its file's [daemon]; without a policy they
    are all there is. Raises PolicyError."""
    from bursar.policy.reading import settle

    return settle(policy, settings, store)
