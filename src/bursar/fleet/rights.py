"""Who may do what. A token, or the name in a certificate, has scopes; what is in none of them is denied.

A scope is resources and tenants, each by pattern ("llm", "*"; "acme", "acme/*", "*"), and verbs:

acquire   acquire, settle, release, claim, submit tasks
read      explain, statistics, tenants, the policy
change    tenants, the policy, top-ups, fences, forced releases, tokens
join      be a node of the fleet
"""

from __future__ import annotations

from typing import Literal, Protocol

from bursar.fleet.layout import Record

Verb = Literal["acquire", "read", "change", "join"]
VERBS: tuple[Verb, ...] = ("acquire", "read", "change", "join")


class Scope(Record, frozen=True, kw_only=True):
    resources: tuple[str, ...] = ("*",)
    tenants: tuple[str, ...] = ("*",)
    verbs: tuple[Verb, ...] = ("acquire", "read")


class Caller(Protocol):
    """Whoever asks: what the front doors (wire, HTTP) check before anything is done."""

    @property
    def name(self) -> str:
        """For the audit: "token 7f3a (ops)", "certificate gateway", "local"."""

    def check(self, verb: Verb, resource: str = "*", tenant: str = "*") -> None:
        """Raises DeniedError. "*" asks for a right over all resources, or all tenants."""


class Anybody:
    """Where no rights were given out, whoever reaches the daemon may do everything."""

    name = "local"

    def check(self, verb: Verb, resource: str = "*", tenant: str = "*") -> None:
        """Allowed."""


class Rights(Protocol):
    """Tells who asks. `identify` raises DeniedError for a token that is not known, in bounded time."""

    def identify(self, token: str | None, certificate: tuple[str, ...] = ()) -> Caller: ...
