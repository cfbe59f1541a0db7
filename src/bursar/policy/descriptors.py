"""What gateways ask about: a domain, and entries of a key and a value each; and whose that is.

A rule of the policy matches entries one by one, in their order: "path=/search" that value, "path=/v1/*" what
begins so, "path=*" any. It says who pays, with values of entries in braces: "{tenant}", "by-path/{path}".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import Formatter

from bursar.policy.values import Descriptor, Policy

ANY = "*"
TENANT = "tenant"

Entries = tuple[tuple[str, str], ...]


def check_entry(text: str) -> str | None:
    key, sign, value = text.partition("=")
    if not sign or not key or key != key.strip():
        return f'"{text[:40]}" is not a key and a value'
    return f'"{text[:40]}" has a star before its end' if ANY in value[:-1] else None


def check_payer(text: str, match: Sequence[str]) -> str | None:
    """What is wrong with the name of who pays, where these are the entries."""
    keys = {entry.partition("=")[0] for entry in match}
    try:
        fields = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        return f'"{text[:40]}" cannot be read: {error}'
    unknown = next((name for name in fields if name not in keys), None)
    return None if unknown is None else f'"{{{unknown}}}" is not the key of one of its entries'


@dataclass(frozen=True, slots=True)
class Rule:
    """One descriptor of a policy, ready to match."""

    resource: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    tenant: str

    def matches(self, entries: Entries) -> bool:
        return all(
            value == asked or (value[-1:] == ANY and asked.startswith(value[:-1]))
            for value, (_, asked) in zip(self.values, entries, strict=True)
        )

    @property
    def precedence(self) -> tuple[tuple[int, int], ...]:
        """A value before what begins as one, the longer beginning first, entry by entry."""
        return tuple((value[-1:] == ANY, -len(value)) for value in self.values)

    def name_tenant(self, entries: Entries) -> str:
        found = dict(reversed(entries))
        return "".join(
            text + (found[field] if field is not None else "")
            for text, field, _, _ in Formatter().parse(self.tenant)
        )


class Descriptors:
    """All that a policy says of them. Of the rules of one resource the nearest counts; those of several
    resources all do. Without a rule for it, a resource's name is a domain, and the entry "tenant" says
    who pays."""

    def __init__(self, policy: Policy) -> None:
        self._rules: dict[tuple[str, tuple[str, ...]], list[Rule]] = {}
        self._plain = set(policy.resources) - {each.resource for each in policy.descriptors.values()}
        self.domains = set(self._plain)
        for each in policy.descriptors.values():
            self._add(each)
        for rules in self._rules.values():
            rules.sort(key=lambda rule: rule.precedence)

    def _add(self, descriptor: Descriptor) -> None:
        pairs = [entry.partition("=") for entry in descriptor.match]
        keys, values = tuple(pair[0] for pair in pairs), tuple(pair[2] for pair in pairs)
        domain = descriptor.domain or descriptor.resource
        self.domains.add(domain)
        rule = Rule(descriptor.resource, keys, values, descriptor.tenant)
        self._rules.setdefault((domain, keys), []).append(rule)

    def find(self, domain: str, entries: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """(resource, tenant) for each resource that it concerns."""
        asked: Entries = tuple(entries)
        found: dict[str, str] = {}
        for rule in self._rules.get((domain, tuple(key for key, _ in asked)), ()):
            if rule.resource not in found and rule.matches(asked):
                found[rule.resource] = rule.name_tenant(asked)
        tenant = next((value for key, value in asked if key == TENANT), None)
        if domain in self._plain and tenant is not None:
            found[domain] = tenant
        return list(found.items())
