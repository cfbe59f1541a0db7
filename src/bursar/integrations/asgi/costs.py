"""What has a request used?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bursar import sync
from bursar.errors import UsageError
from bursar.resource.checks import check_used
from bursar.resource.grants import Grant
from bursar.runtime import logs

GRANT = "bursar.grant"
"""Where the scope holds the grant; `request.state.grant` is the same one."""


@dataclass(slots=True)
class Sent:
    """What of the response has been sent: `used` functions decide from it."""

    status: int = 0
    headers: Any = ()
    body_bytes: int = 0


FindUsed = Callable[[Sent], int | None]


def used_by_header(name: str) -> FindUsed:
    """The application says in a response header what the request has cost."""
    wanted = name.lower().encode("latin-1")

    def find(sent: Sent) -> int | None:
        for key, value in sent.headers:
            if bytes(key).lower() == wanted and bytes(value).isdigit():
                return int(value)
        return None

    return find


def used_by_bytes(sent: Sent) -> int:
    """A response costs its length."""
    return sent.body_bytes


class Ungranted:
    """In place of a grant, for a request that was free, or that went on because bursar was away and
    `when_away` let it. Settling it does nothing: handlers need not know which it is."""

    __slots__ = ("fallback", "tenant")

    amount = 0
    limit = remaining = reset_after = used = None

    def __init__(self, tenant: str, fallback: str | None = None) -> None:
        self.tenant = tenant
        self.fallback = fallback

    def settle(self, used: int) -> None:
        """Nothing was charged, so nothing is given back."""


class RequestGrant:
    """A request's grant as its handler sees it: a `Grant`, whose `settle` never spoils an answer that is
    being sent. What was used beyond the grant is the policy's business (a quota's `over`), and what could
    not be charged is in the logs."""

    __slots__ = ("_grant",)

    def __init__(self, grant: Grant | sync.Grant) -> None:
        self._grant = grant

    def settle(self, used: int) -> None:
        """Say what was really used. Raises UsageError for what is no number, and once the response is out."""
        grant = self._grant
        check_used(used)
        try:
            grant.settle(used)
        except UsageError as error:
            if grant.closed:
                raise
            logs.warning("asgi.not_settled", resource=grant.resource, tenant=grant.tenant, why=str(error))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grant, name)

    def __repr__(self) -> str:
        return repr(self._grant)


def grant_of(request: Any) -> RequestGrant | Ungranted:
    """The grant of a request (or a scope): call `settle` on it when the cost is known."""
    scope = request if isinstance(request, Mapping) else request.scope
    grant: RequestGrant | Ungranted | None = scope.get(GRANT)
    if grant is None:
        raise UsageError(
            "this request has no grant: it is exempt, or BursarMiddleware is not in front of the application"
        )
    return grant


def show(grant: Grant | sync.Grant | Ungranted) -> RequestGrant | Ungranted:
    """What a handler gets."""
    return grant if isinstance(grant, Ungranted) else RequestGrant(grant)


def attach(scope: Any, grant: Grant | Ungranted) -> None:
    """Show a request its grant."""
    scope[GRANT] = shown = show(grant)
    scope.setdefault("state", {})["grant"] = shown
