"""The policy: what was promised to whom, read from TOML, checked, frozen.

`load` reads a file, `parse` a text, `build` a table; each returns a Policy or raises PolicyError
with everything that is wrong, where it stands, and what to write instead. `values` holds the
frozen values, `keys` every key of the file, once, for both the reading and the JSON Schema.
"""

from bursar.policy.reading import build, load, parse
from bursar.policy.values import (
    KINDS,
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
]
