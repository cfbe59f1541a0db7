"""The filter's rules, and which of them a request comes under."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bursar.errors import UsageError

RATE_MAX = 2**52
ANY = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """Requests of `tenant` (a name, a beginning and "*", or "*" for any) and
    `operation` (a name or "*") get `rate` tokens a second, each tenant its own. The lowest rank
    matches first, and goes first among classes due at the same moment; equal ranks go by age, oldest
    first."""

    name: str
    rate: int
    tenant: str = ANY
    operation: str = ANY
    rank: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.rate <= RATE_MAX:
            raise UsageError(
                f"rule {self.name!r}: a rate is 1 to 2^52 tokens a second, not {self.rate!r}; "
                "a tenant without tokens gets rate 1, since without a rule it would have no limit"
            )
        if ANY in self.tenant[:-1]:
            raise UsageError(f'rule {self.name!r}: "*" stands at the end of a tenant, not in {self.tenant!r}')

    @property
    def is_wide(self) -> bool:
        """Whether it matches more than one tenant."""
        return self.tenant.endswith(ANY)

    def matches(self, tenant: str, operation: str) -> bool:
        if self.operation not in (ANY, operation):
            return False
        if self.is_wide:
            return tenant.startswith(self.tenant[:-1])
        return tenant == self.tenant


class RuleTable:
    """Rules by name, and by the tenant they name: finding a request's rule takes no longer for
    10,000 rules that each name a tenant than for one."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}
        self._age: dict[str, int] = {}
        self._started = 0
        self._exact: dict[str, list[Rule]] = {}
        self._wide: list[Rule] = []

    def __iter__(self) -> Iterator[Rule]:
        """In the order in which they match."""
        return iter(sorted(self._rules.values(), key=self._order))

    def __getitem__(self, name: str) -> Rule:
        try:
            return self._rules[name]
        except KeyError:
            raise UsageError(f"no rule is named {name!r}; start it first") from None

    def add(self, rule: Rule) -> None:
        if rule.name in self._rules:
            raise UsageError(f"rule {rule.name!r} runs already; change it, or stop it first")
        self._started += 1
        self._age[rule.name] = self._started
        self._insert(rule)

    def replace(self, old: Rule, new: Rule) -> None:
        """A rule of the same name with another rate or rank; it keeps its age."""
        rules = self._beside(old)
        rules[rules.index(old)] = new
        self._rules[new.name] = new
        if old.rank != new.rank:
            rules.sort(key=self._order)

    def remove(self, rule: Rule) -> None:
        rules = self._beside(rule)
        rules.remove(rule)
        if not rules and rules is not self._wide:
            del self._exact[rule.tenant]
        del self._rules[rule.name]
        del self._age[rule.name]

    def match(self, tenant: str, operation: str) -> Rule | None:
        """The rule that such a request comes under."""
        exact = _first(self._exact.get(tenant, ()), tenant, operation)
        wide = _first(self._wide, tenant, operation)
        if exact is None or wide is None:
            return exact or wide
        return min(exact, wide, key=self._order)

    def _insert(self, rule: Rule) -> None:
        self._rules[rule.name] = rule
        rules = self._beside(rule)
        rules.append(rule)
        rules.sort(key=self._order)

    def _beside(self, rule: Rule) -> list[Rule]:
        """The list that a rule stands in."""
        return self._wide if rule.is_wide else self._exact.setdefault(rule.tenant, [])

    def _order(self, rule: Rule) -> tuple[int, int]:
        return rule.rank, self._age[rule.name]


def _first(rules: Iterable[Rule], tenant: str, operation: str) -> Rule | None:
    return next((rule for rule in rules if rule.matches(tenant, operation)), None)
