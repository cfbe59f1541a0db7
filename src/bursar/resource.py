"""The noun and the verb: a tenant acquires from a resource and gets a grant.

`Resource` is what every kind offers its users, and what the daemon and its remote clients speak;
a kind fills in `_take`, `_give_back`, `try_acquire`, `explain` and `statistics`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping
from types import TracebackType
from typing import Any

import msgspec

from bursar.errors import UsageError
from bursar.world import NAME_MAX_BYTES, SECOND_NS

AMOUNT_MAX = 2**63 - 1
WAIT_MAX_S = 86_400.0


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a tenant gets what it gets: the answer to `bursar why RESOURCE TENANT`.

    `sentences` are for people, in the order in which the decision is made; `figures` are the
    numbers they rest on, by name, for programs."""

    resource: str
    kind: str
    tenant: str
    sentences: tuple[str, ...]
    figures: Mapping[str, int | float | str | bool | None] = {}


class Grant:
    """What was granted. Leave it by `async with`, or call `release()`.

    amount    tokens charged to the tenant for it
    fence     for a claim: the phase of each name, to be checked wherever it is used
    fallback  None, or what the policy did because bursar could not be reached
    data      what the kind needs to give it back; not for users
    """

    __slots__ = ("_resource", "_used", "amount", "closed", "data", "fallback", "fence", "tenant")

    def __init__(
        self,
        resource: Resource,
        tenant: str,
        amount: int,
        *,
        fence: Mapping[str, int] | None = None,
        fallback: str | None = None,
        data: Any = None,
    ) -> None:
        self._resource = resource
        self.tenant = tenant
        self.amount = amount
        self.fence = dict(fence or {})
        self.fallback = fallback
        self.data = data
        self.closed = False
        self._used: int | None = None

    @property
    def resource(self) -> str:
        return self._resource.name

    def settle(self, used: int) -> None:
        """Say what was really used; the rest is given back when the grant is left. What may be
        given back, and whether `used` may pass the amount, is the kind's to say."""
        if not isinstance(used, int) or isinstance(used, bool) or not 0 <= used <= AMOUNT_MAX:
            raise UsageError(f"settle takes a whole number from 0 to 2^63 - 1, not {used!r}")
        if self.closed:
            raise UsageError("this grant was released already; settle before leaving it")
        self._used = used

    @property
    def used(self) -> int | None:
        """What `settle` was told, or None."""
        return self._used

    async def release(self) -> None:
        """Give back what is to be given back. Calling it again does nothing."""
        if not self.closed:
            self.closed = True
            await self._resource._give_back(self)

    async def __aenter__(self) -> Grant:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._used is None and not self.closed:
            # Reserve, then pay what was used: work that failed before saying so used nothing.
            self._used = self._resource.used_on_error(self)
        await self.release()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Grant {self.amount} of {self.resource} to {self.tenant}, {state}>"


class Acquisition:
    """What `acquire` returns: await it for a grant that you release, or use it in `async with`."""

    __slots__ = ("_amount", "_grant", "_key", "_resource", "_tenant", "_wait_ns")

    def __init__(self, resource: Resource, tenant: str, amount: int, wait_ns: int, key: str | None) -> None:
        self._resource = resource
        self._tenant = tenant
        self._amount = amount
        self._wait_ns = wait_ns
        self._key = key
        self._grant: Grant | None = None

    def __await__(self) -> Generator[Any, None, Grant]:
        return self._resource._take(self._tenant, self._amount, self._wait_ns, self._key).__await__()

    async def __aenter__(self) -> Grant:
        self._grant = await self
        return self._grant

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._grant is not None, "entered before"
        await self._grant.__aexit__(kind, error, trace)


class Resource(ABC):
    """Something that tenants contend for. Its kind decides who gets how much of it."""

    kind: str = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def acquire(
        self, tenant: str, amount: int = 1, *, wait: float = 0.0, key: str | None = None
    ) -> Acquisition:
        """Acquire `amount` tokens for `tenant`, waiting at most `wait` seconds for them.

        Raises Refused (decided) or Unknown (could not be learnt in time). The same `key` twice
        is one acquisition, where the kind supports keys."""
        check_name("tenant", tenant)
        check_amount(amount)
        if not 0 <= wait <= WAIT_MAX_S:
            raise UsageError(f"wait is a number of seconds from 0 to {WAIT_MAX_S:.0f}, not {wait!r}")
        if key is not None:
            check_name("key", key)
        return Acquisition(self, tenant, amount, int(wait * SECOND_NS), key)

    @abstractmethod
    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        """Acquire from what is here already: no I/O, no waiting. None when there is not enough
        here, which is not a refusal."""

    @abstractmethod
    async def _take(self, tenant: str, amount: int, wait_ns: int, key: str | None) -> Grant: ...

    @abstractmethod
    async def _give_back(self, grant: Grant) -> None: ...

    @abstractmethod
    def explain(self, tenant: str) -> Explanation: ...

    @abstractmethod
    def statistics(self) -> Mapping[str, Any]:
        """A snapshot of plain numbers and strings, nested by tenant and server: what the API,
        the metrics and the dashboard show."""

    def used_on_error(self, grant: Grant) -> int | None:
        """What a grant left by an exception, without `settle`, has used: all of it, unless the
        kind says otherwise (a budget gives it back)."""
        return None

    async def start(self) -> None:  # noqa: B027 - most kinds need one, none must
        """Begin to grant. Called once."""

    async def stop(self) -> None:  # noqa: B027
        """Stop granting and let go of what is held, within a second."""


def check_name(what: str, name: object) -> None:
    """Refuse a name that could not stand in a file, a path or a metric."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"{what} must be a non-empty string, not {name!r}")
    if len(name.encode("utf-8", "surrogatepass")) > NAME_MAX_BYTES:
        raise UsageError(f"{what} is longer than {NAME_MAX_BYTES} bytes: {name[:40]!r}...")
    if not name.isprintable():
        raise UsageError(f"{what} has characters that cannot be printed: {name[:40]!r}")


def check_amount(amount: object) -> None:
    if not isinstance(amount, int) or isinstance(amount, bool) or not 1 <= amount <= AMOUNT_MAX:
        raise UsageError(f"amount must be a whole number from 1 to 2^63 - 1, not {amount!r}")


def check_change(old: msgspec.Struct, new: msgspec.Struct, live: Collection[str]) -> None:
    """Refuse a changed policy if anything but the `live` fields differs: nothing in it is ignored."""
    fields = [name for name in old.__struct_fields__ if name not in live]
    changed = [name.removesuffix("_ns") for name in fields if getattr(old, name) != getattr(new, name)]
    if changed:
        raise UsageError(f"{', '.join(changed)} changed, which needs a restart of the daemon")
