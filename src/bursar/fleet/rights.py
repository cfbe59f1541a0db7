"""Who may do what. A token, or the name in a certificate, has scopes; what is in none of them is denied.

A scope is resources and tenants, each by pattern, and verbs:

acquire   acquire, settle, release, claim, submit and cancel tasks
read      explain, statistics, tasks, tenants, the policy
change    tenants, the policy, top-ups, fences, forced releases
join      be a node of the fleet (whatever the resources and tenants)

A pattern is a name ("acme": that one alone), a name and "/*" ("acme/*": all below acme, and not acme
itself, as a template of the policy has it), or "*". No verb contains another: who is to read and
acquire is given both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Protocol

from bursar.errors import DeniedError
from bursar.fleet.layout import Record

Verb = Literal["acquire", "read", "change", "join"]
VERBS: tuple[Verb, ...] = ("acquire", "read", "change", "join")

ALL = "*"
BELOW = "/*"


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern covers a name. "*" as a name stands for all there are."""
    if pattern == ALL:
        return True
    if pattern.endswith(BELOW):
        return name.startswith(pattern[:-1]) and len(name) > len(pattern) - 1
    return pattern == name


def _any_matches(patterns: tuple[str, ...], name: str) -> bool:
    # Every request is checked: a plain loop takes half the time of `any`.
    for pattern in patterns:  # noqa: SIM110
        if matches(pattern, name):
            return True
    return False


class Scope(Record, frozen=True, kw_only=True):
    resources: tuple[str, ...] = (ALL,)
    tenants: tuple[str, ...] = (ALL,)
    verbs: tuple[Verb, ...] = ("acquire", "read")

    def allows(self, verb: Verb, resource: str, tenant: str) -> bool:
        if verb not in self.verbs:
            return False
        if verb == "join":
            return True
        return _any_matches(self.resources, resource) and _any_matches(self.tenants, tenant)

    def covers(self, resource: str) -> bool:
        return _any_matches(self.resources, resource)

    def __str__(self) -> str:
        whose = f"{_name('tenant', self.tenants)} of {_name('resource', self.resources)}"
        return f"{', '.join(self.verbs)} for {whose}"


def _name(what: str, patterns: tuple[str, ...]) -> str:
    return f"every {what}" if ALL in patterns else f"{what} {', '.join(patterns)}"


EVERYTHING = Scope(verbs=VERBS)


class Caller(Protocol):
    """Whoever asks: what the front doors (wire, HTTP) check before anything is done. It is asked anew
    each time, so that a right that was taken away is gone at once, also for who came before."""

    @property
    def name(self) -> str:
        """For the audit: "token 7f3a (ops)", "certificate gateway", "local"."""

    @property
    def valid(self) -> bool:
        """Whether it is still somebody: its token was neither revoked nor has it expired."""

    def may(self, verb: Verb, resource: str = ALL, tenant: str = ALL) -> bool:
        """ "*" asks for a right over all resources, or all tenants."""

    def may_some(self, verb: Verb, resource: str) -> bool:
        """Whether there may be a tenant of the resource for whom it may."""

    def check(self, verb: Verb, resource: str = ALL, tenant: str = ALL) -> None:
        """Raises DeniedError."""


class Anybody:
    """Where no rights were given out, whoever reaches the daemon may do everything: for as long as
    `is_open` says so."""

    def __init__(self, name: str = "local", is_open: Callable[[], bool] = lambda: True) -> None:
        self.name = name
        self._is_open = is_open

    @property
    def valid(self) -> bool:
        return self._is_open()

    def may(self, verb: Verb, resource: str = ALL, tenant: str = ALL) -> bool:
        return self._is_open()

    def may_some(self, verb: Verb, resource: str) -> bool:
        return self._is_open()

    def check(self, verb: Verb, resource: str = ALL, tenant: str = ALL) -> None:
        if not self._is_open():
            raise DeniedError(NOBODY)


NOBODY = "this daemon wants a token: pass token=..., or set BURSAR_TOKEN (`bursar token create` makes one)"


class Known:
    """Whoever showed a token, or a certificate that tokens name. `find` gives its scopes as they are
    now: none, once it was revoked or has expired."""

    def __init__(self, name: str, find: Callable[[], tuple[Scope, ...]]) -> None:
        self.name = name
        self._find = find

    @property
    def valid(self) -> bool:
        return bool(self._find())

    def may(self, verb: Verb, resource: str = ALL, tenant: str = ALL) -> bool:
        for scope in self._find():  # noqa: SIM110  as `_any_matches`
            if scope.allows(verb, resource, tenant):
                return True
        return False

    def may_some(self, verb: Verb, resource: str) -> bool:
        return any(verb in scope.verbs and scope.covers(resource) for scope in self._find())

    def check(self, verb: Verb, resource: str = ALL, tenant: str = ALL) -> None:
        if not self.may(verb, resource, tenant):
            raise self._deny(verb, resource, tenant)

    def _deny(self, verb: Verb, resource: str, tenant: str) -> DeniedError:
        if not self.valid:
            return DeniedError(f"{self.name} was revoked or has expired: ask for another")
        if verb == "join":
            return DeniedError(f"{self.name} may not join: that takes a token with --verb join")
        whose = "all tenants" if tenant == ALL else f'"{tenant[:100]}"'
        where = "all resources" if resource == ALL else resource[:100]
        return DeniedError(
            f"{self.name} may not {verb} for {whose} of {where}: that takes a token with "
            f"--verb {verb} --resource '{resource[:100]}' --tenant '{tenant[:100]}'"
        )


def may_anything(caller: Caller, resource: str) -> bool:
    """Whether it may know that there is such a resource."""
    return any(caller.may_some(verb, resource) for verb in VERBS if verb != "join")


class Rights(Protocol):
    """Tells who asks."""

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked who it is."""

    def identify(self, token: str | None, certificate: Iterable[str] = ()) -> Caller:
        """Raises DeniedError for a token that is not known, or where one is wanted and none is shown."""

    def note_refused(self, source: str, why: str) -> int:
        """Count that `identify` denied somebody who came from there; for how many nanoseconds the answer
        is to be kept back (`bursar.fleet.refusals`)."""

    def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed()` whenever somebody may have gained or lost a right. It must not block."""


class NoRights:
    """Nobody is asked who it is."""

    is_open = True

    def identify(self, token: str | None, certificate: Iterable[str] = ()) -> Caller:
        return Anybody()

    def note_refused(self, source: str, why: str) -> int:
        return 0

    def follow(self, changed: Callable[[], None]) -> None:
        """Nothing ever changes."""


NO_RIGHTS = NoRights()
