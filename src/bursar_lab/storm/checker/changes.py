"""Which texts, and which terms of a tenant, could have been in force between two moments.

A change may be in force from the moment it was asked for. What stood before it is surely over only when
the change was told as done (`ok` is true). A change without an end, or with another answer, may or may
not have happened: it counts as possible until a later one is surely in force.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

from bursar_lab.storm.checker.policies import Policy, Resource, Terms
from bursar_lab.storm.checker.quantities import SECOND_NS

ValueT = TypeVar("ValueT")

UNBOUNDED = Fraction(2**80)
"""Above every sum that a history can have."""

LATE_NS = 60 * SECOND_NS
"""A change whose answer never came may still be carried out for so long."""


@dataclass(frozen=True)
class Change(Generic[ValueT]):
    at: int
    end: int
    sure: bool
    value: ValueT


def find_possible(changes: Sequence[Change[ValueT]], since: int, until: int) -> list[ValueT]:
    """The values that could have been in force at some moment of it. `changes` are in order of `at`."""
    over = max((c.at for c in changes if c.sure and c.end <= since), default=None)
    return [c.value for c in changes if c.at <= until and (over is None or c.end >= over)]


class Changes:
    """All texts, and all tenants that were set beside them."""

    def __init__(
        self,
        texts: Sequence[Change[Policy]],
        tenants: dict[tuple[str, str], list[Change[Terms | None]]],
    ) -> None:
        self.texts = sorted(texts, key=lambda change: change.at)
        self.tenants = {name: sorted(list_, key=lambda change: change.at) for name, list_ in tenants.items()}

    def find_resources(self, name: str, since: int, until: int) -> list[Resource]:
        """The forms that a resource could have had."""
        texts = find_possible(self.texts, since, until)
        return [text.resources[name] for text in texts if name in text.resources]

    def find_terms(self, name: str, tenant: str, since: int, until: int) -> Iterator[Terms | None]:
        """The terms that a tenant could have had; None: it could have been unknown."""
        own = self.tenants.get((name, tenant), [])
        beside = find_possible(own, since, until)
        may_be_absent = None in beside or not any(c.sure and c.end <= since for c in own)
        for resource in self.find_resources(name, since, until):
            if tenant in resource.tenants:
                yield resource.tenants[tenant]
                continue
            yield from (terms for terms in beside if terms is not None)
            if may_be_absent:
                yield resource.template(tenant)

    def find_limit(self, name: str, tenant: str, since: int, until: int) -> Fraction:
        """The highest limit that could have been in force: 0 for a tenant that nobody could know."""
        highest = Fraction(0)
        for terms in self.find_terms(name, tenant, since, until):
            if terms is not None:
                highest = max(highest, UNBOUNDED if terms.limit is None else terms.limit)
        return highest

    def all_resources(self, kind: str) -> dict[str, list[Resource]]:
        """Every resource of a kind that any text had, with all its forms."""
        found: dict[str, list[Resource]] = {}
        for change in self.texts:
            for name, resource in change.value.resources.items():
                if resource.kind == kind:
                    found.setdefault(name, []).append(resource)
        return found
