"""Statistics of some tenants only: for who may read no others.

Rows are found by how statistics declare them (`bursar.resource.statistics`): a table labelled by tenant
or account, or named `tenants`; rows, or alerts, with a tenant each. Texts in which any tenant may be
named are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_type_hints

import msgspec

from bursar.policy.names import OVERDRAFT
from bursar.policy.values import QuotaPolicy, ResourcePolicy
from bursar.resource.statistics import Statistics

May = Callable[[str], bool]

_WINDOW = re.compile(r"@\d{4}-\d\d-\d\d[\dT:]*(\.\.\d{4}-\d\d-\d\d[\dT:]*)?$")


def find_tenant(policy: ResourcePolicy | None, account: str) -> str:
    """Whose account it is: "acme" for "acme@2026-11-01..2026-12-01", or for the begin alone, and for its
    overdraft. A tenant's name may look like that too."""
    if isinstance(policy, QuotaPolicy) and account in policy.tenants:
        return account
    return _WINDOW.sub("", account).removesuffix(OVERDRAFT)


def restrict(statistics: Statistics, policy: ResourcePolicy | None, may: May) -> Statistics:
    """What of them is of tenants for whom `may`. Rows that are not made yet are made only then."""
    found = _restrict(statistics, policy, may)
    assert isinstance(found, Statistics), "the same with fewer rows"
    return found


def _restrict(struct: msgspec.Struct, policy: ResourcePolicy | None, may: May) -> msgspec.Struct:
    changed: dict[str, Any] = {}
    labels = read_labels(type(struct))
    for field in struct.__struct_fields__:
        held = getattr(struct, field)
        if isinstance(held, Mapping):
            changed[field] = _restrict_table(field, labels.get(field), held, policy, may)
        elif isinstance(held, tuple) and field in labels:
            changed[field] = tuple(row for row in held if may(_whose(row)))
        elif isinstance(held, msgspec.Struct):
            changed[field] = _restrict(held, policy, may)
        elif labels.get(field) == "none":
            changed[field] = None
    return msgspec.structs.replace(struct, **changed)


def _whose(row: Any) -> str:
    """An alert says its tenant; what is a text may be one's name."""
    return str(getattr(row, "tenant", row))


def _restrict_table(
    field: str, label: str | None, table: Mapping[str, Any], policy: ResourcePolicy | None, may: May
) -> dict[str, Any]:
    if label == "tenant" or field == "tenants":
        kept = [name for name in table if may(name)]
    elif label == "account":
        kept = [name for name in table if may(find_tenant(policy, name))]
    else:
        kept = [name for name, row in table.items() if not hasattr(row, "tenant") or may(row.tenant)]
    found: dict[str, Any] = {}
    for name in kept:
        try:
            row = table[name]
        except KeyError:
            continue  # gone since
        deep = isinstance(row, msgspec.Struct) and bool(read_labels(type(row)))
        found[name] = _restrict(row, policy, may) if deep else row
    return found


@cache
def read_labels(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Of each field that is a table the label that its keys are; "none" for what is for people only."""
    found: dict[str, str] = {}
    for field, hint in get_type_hints(struct, include_extras=True).items():
        for meta in getattr(hint, "__metadata__", ()):
            extra = meta.extra or {}
            if extra.get("metric") == "labelled":
                found[field] = extra["label"]
            elif extra.get("metric") == "none":
                found[field] = "none"
    return found
