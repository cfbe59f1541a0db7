"""What takes which right: every request that can be made of a daemon, as a table.

A `Use` is one request: the verb that a scope must have for it, and for whom. `RIGHTS` are the tokens that
are tried. What should come of a token and a use is said here by a few plain sets, and not by the code
that is tested. Another way in (HTTP) is tested with the same table: `find_mistakes` takes whatever makes
a request of a use and says what came of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from bursar.fleet.rights import Scope

TENANTS = ("acme", "acme/search", "globex")

COVERED = {
    "acme": {"acme"},
    "acme/*": {"acme/search"},
    "globex": {"globex"},
    "*": {*TENANTS, "*"},
}
"""The tenants that a pattern covers; "*" stands for all there are."""

POLICY = """
[resource.cache]
kind = "rate"
servers = { here = "2k/s" }
[resource.cache.tenant]
acme = { limit = "1k/s" }
"acme/search" = { limit = "1k/s" }
globex = { limit = "1k/s", reservation = "100/s" }

[resource.customers]
kind = "rate"
servers = { here = "2k/s" }

[resource.disk]
kind = "share"
capacity = "1k/s"
[resource.disk.tenant]
acme = { weight = 1 }
"acme/search" = { weight = 1 }
globex = { weight = 3 }

[resource.records]
kind = "pool"
capacity = "1k/s"
[resource.records.tenant]
acme = { reservation = "100/s" }
"acme/search" = { reservation = "100/s" }
globex = { reservation = "100/s" }

[resource.budget]
kind = "quota"
[resource.budget.tenant]
acme = { limit = 100_000 }
"acme/search" = { limit = 100_000 }
globex = { limit = 100_000 }

[resource.monthly]
kind = "quota"
window = "month"
[resource.monthly.tenant]
acme = { limit = 100_000 }
"acme/search" = { limit = 100_000 }
globex = { limit = 100_000 }

[resource.things]
kind = "claim"
"""
"""The tenants of `customers` are set beside it."""

RESOURCES = {
    "cache": "rate",
    "customers": "rate",
    "disk": "share",
    "records": "pool",
    "budget": "quota",
    "monthly": "quota",
    "things": "claim",
}

RIGHTS: tuple[Scope, ...] = (
    *(Scope(verbs=(verb,)) for verb in ("acquire", "read", "change", "join")),
    *(
        Scope(verbs=(verb,), tenants=(tenant,))  # type: ignore[arg-type]
        for verb in ("acquire", "read", "change")
        for tenant in ("acme", "acme/*", "globex")
    ),
    Scope(verbs=("acquire", "read", "change"), resources=("budget",)),
    Scope(verbs=("acquire", "read", "change"), resources=("things",), tenants=("acme",)),
)


@dataclass(frozen=True)
class Use:
    """`of`: the right is over the `tenant` that it is asked for, over `all` tenants, or over any, and then
    only the `rows` of those are to be seen. `before`: what the administrator has done for the tenant
    first, by name: "grant", "task"."""

    name: str
    resource: str
    verb: Literal["acquire", "read", "change"]
    of: Literal["tenant", "all", "rows"] = "tenant"
    before: str = ""


USES: tuple[Use, ...] = (
    *(Use("acquire", name, "acquire") for name in RESOURCES),
    *(Use("explain", name, "read") for name in RESOURCES),
    *(Use("statistics", name, "read", "rows") for name in RESOURCES),
    *(Use("settle", name, "acquire", before="grant") for name in ("budget", "monthly")),
    *(Use(name, "budget", "acquire", before="grant") for name in ("grow", "extend")),
    *(Use("top_up", name, "change", before="grant") for name in ("budget", "monthly")),
    *(Use("top_up_account", name, "change", before="grant") for name in ("budget", "monthly")),
    *(
        Use(verb, name, "read", "rows", before="grant")
        for verb in ("survey", "usage", "balance")
        for name in ("budget", "monthly")
    ),
    *(Use("adjust", name, "change", before="grant") for name in ("budget", "monthly")),
    Use("set_limit", "budget", "change", before="grant"),
    Use("fence", "budget", "change", "all"),
    Use("accept", "budget", "change", "all"),
    Use("announce", "disk", "acquire"),
    Use("set_tenants", "customers", "change"),
    Use("show_tenant", "customers", "read"),
    Use("list_tenants", "customers", "read", "rows"),
    Use("submit", "things", "acquire"),
    Use("cancel", "things", "acquire", before="task"),
    Use("read", "things", "read", before="task"),
    Use("wait_for", "things", "read", before="task"),
    Use("why", "things", "read", before="task"),
    Use("tasks", "things", "read", "rows", before="task"),
    Use("dead", "things", "read", "rows"),
    Use("history", "things", "read", "rows"),
    Use("wait_for_some", "things", "read", "rows"),
    Use("wait_lost", "things", "read", before="task"),
    Use("retry", "things", "acquire", before="task"),
    Use("discard", "things", "acquire", before="task"),
    Use("holders", "things", "read", "rows"),
    Use("force_release", "things", "change", "all"),
)

DENIED = "denied"
ALLOWED = "allowed"
Outcome = str | frozenset[str]
"""DENIED, ALLOWED (also if it was refused for another reason), or the tenants whose rows were shown."""

Try = Callable[[Scope, Use, str], Awaitable[Outcome]]
"""Makes the request of a use for a tenant, as the holder of a token with that scope."""


def allows(scope: Scope, verb: str, resource: str, tenant: str) -> bool:
    covered = any(tenant in COVERED[pattern] for pattern in scope.tenants)
    return verb in scope.verbs and covered and ({"*", resource} & set(scope.resources) != set())


def expect(scope: Scope, use: Use, tenant: str) -> Outcome:
    if use.of == "rows":
        shown = frozenset(each for each in TENANTS if allows(scope, use.verb, use.resource, each))
        return shown or DENIED
    whose = "*" if use.of == "all" else tenant
    return ALLOWED if allows(scope, use.verb, use.resource, whose) else DENIED


async def find_mistakes(attempt: Try, uses: tuple[Use, ...] = USES, most: int = 1_000) -> list[str]:
    """What came out otherwise than the table says."""
    found = []
    for scope, use in itertools.product(RIGHTS, uses):
        for tenant in TENANTS if use.of == "tenant" else TENANTS[:1]:
            wanted, came = expect(scope, use, tenant), await attempt(scope, use, tenant)
            if wanted != came:
                found.append(f"[{scope}] {use.name} {use.resource} for {tenant}: {came}, not {wanted}")
                if len(found) >= most:
                    return found
    return found


def read_tenants(value: Any) -> frozenset[str]:
    """The tenants named anywhere in an answer, whatever it looks like."""
    found: set[str] = set()
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
        return frozenset().union(*(read_tenants(part) for part in parts))
    if isinstance(value, list | tuple):
        return frozenset().union(*(read_tenants(part) for part in value))
    if isinstance(value, str):
        found = {tenant for tenant in TENANTS if value.partition("@")[0] == tenant}
        found |= {"globex"} if "globex" in value else set()
    return frozenset(found)
