"""A resource as one caller may use it: what every way in (the wire, HTTP) asks instead of the door.

Who may use it for some tenants only sees the rows of these. What is of the resource as a whole (its
capacity, how many wait) is shown to whoever may read of any of its tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bursar.errors import DeniedError, Refused
from bursar.fleet import rights
from bursar.fleet.rights import ALL, Caller
from bursar.resource.decider import Explanation
from bursar.resource.door import Resource
from bursar.resource.excerpts import Wanted
from bursar.resource.only import find_tenant
from bursar.resource.statistics import Statistics

Of = Literal["all", "tenant", "tenants", "account", "task", "rows", "page", "table"]


@dataclass(frozen=True, slots=True)
class Need:
    """What a kind's verb takes.

    of   whose right: "all" tenants'; the `tenant`, all `tenants` or the `account` among its arguments;
         that of the task whose `id` is; or only what is answered counts: `rows` with a tenant each,
         a `page` of them, a `table` of tenants
    by   it is a change that is recorded: it is told who makes it
    """

    verb: rights.Verb
    of: Of
    by: bool = False


NEEDS: Mapping[str, Need] = {
    "top_up": Need("change", "account", by=True),
    "set_limit": Need("change", "tenant", by=True),
    "fence": Need("change", "all", by=True),
    "accept": Need("change", "all", by=True),
    "survey": Need("read", "page"),
    "usage": Need("read", "page"),
    "balance": Need("read", "page"),
    "adjust": Need("change", "account", by=True),
    "set_tenants": Need("change", "tenants", by=True),
    "show_tenant": Need("read", "tenant"),
    "list_tenants": Need("read", "table"),
    "announce": Need("acquire", "tenant"),
    "submit": Need("acquire", "tenant"),
    "cancel": Need("acquire", "task"),
    "read": Need("read", "task"),
    "wait_for": Need("read", "task"),
    "wait_for_some": Need("read", "rows"),
    "wait_lost": Need("read", "task"),
    "why": Need("read", "task"),
    "tasks": Need("read", "rows"),
    "dead": Need("read", "rows"),
    "history": Need("read", "rows"),
    "retry": Need("acquire", "task"),
    "discard": Need("acquire", "task"),
    "holders": Need("read", "rows"),
    # It takes the name from everybody who holds it, whoever that is by then.
    "force_release": Need("change", "all", by=True),
}
UNLISTED = Need("change", "all")
"""A verb that is new, and that nobody has thought about."""


class Guarded:
    """One resource and one caller. Everything here raises DeniedError."""

    def __init__(self, door: Resource, caller: Caller) -> None:
        self.door = door
        self.caller = caller

    def check(self, tenant: str) -> None:
        """Before an acquisition."""
        self.caller.check("acquire", self.door.name, tenant)

    def _may_all(self, verb: rights.Verb) -> bool:
        return self.caller.may(verb, self.door.name, ALL)

    def _filter(self, verb: rights.Verb) -> Callable[[str], bool]:
        return lambda tenant: self.caller.may(verb, self.door.name, tenant)

    def _check_some(self, verb: rights.Verb) -> None:
        if not self.caller.may_some(verb, self.door.name):
            self.caller.check(verb, self.door.name, ALL)

    def _check_tenant(self, verb: rights.Verb, tenant: str) -> None:
        """That it may, and that there is such a tenant: whoever says so otherwise tells of others."""
        self.caller.check(verb, self.door.name, tenant)
        policy = self.door.policy
        if tenant != ALL and not self._may_all(verb) and policy is not None and policy.find(tenant) is None:
            raise Refused(write_unknown(self.door, tenant), reason="tenant")

    async def settle(self, id: str, used: int | None, tenant: str | None = None) -> None:
        """`tenant`: whose the grant is, if that is known."""
        await self._check_grant(id, tenant)
        await self.door.settle(id, used)

    async def release(self, id: str, attempt: int) -> None:
        if self.door.decider.offers.names and not self._may_all("acquire"):
            await self._check_need(NEEDS["cancel"], {"id": id})
        await self.door.release_id(id, attempt)

    async def grow(self, id: str, size: int, tenant: str | None = None) -> int:
        await self._check_grant(id, tenant)
        return await self.door.grow_id(id, size)

    async def extend(self, id: str, hold_ns: int, tenant: str | None = None) -> None:
        await self._check_grant(id, tenant)
        await self.door.extend_id(id, hold_ns)

    async def _check_grant(self, id: str, tenant: str | None) -> None:
        if self.door.settles and not self._may_all("acquire"):
            self._check_some("acquire")
            self.check(tenant or await self.door.whose(id))

    async def explain(self, tenant: str) -> Explanation:
        self._check_tenant("read", tenant)
        return await self.door.explain(tenant)

    async def statistics(self, wanted: Wanted | None = None) -> Statistics:
        if self._may_all("read"):
            return await self.door.statistics(wanted=wanted)
        self._check_some("read")
        return await self.door.statistics(self._filter("read"), wanted)

    async def do(self, verb: str, arguments: Mapping[str, Any]) -> Any:
        """A verb of the kind's own."""
        need = NEEDS.get(verb, UNLISTED)
        # Whatever the caller says of it: who does it is known here.
        given = {**arguments, "by": self.caller.name} if need.by else arguments
        if not self._may_all(need.verb):
            await self._check_need(need, given)
        answer = await self.door.verb(verb, **given)
        return answer if self._may_all(need.verb) else self._show(need, answer)

    async def _check_need(self, need: Need, given: Mapping[str, Any]) -> None:
        self._check_some(need.verb)
        name = self.door.name
        match need.of:
            case "all":
                self.caller.check(need.verb, name, ALL)
            case "tenant":
                self._check_tenant(need.verb, _read_text(given.get("tenant")))
            case "tenants":
                for tenant in _read_keys(given.get("tenants")):
                    self.caller.check(need.verb, name, tenant)
            case "account":
                account = _read_text(given.get("account"))
                self._check_tenant(need.verb, find_tenant(self.door.policy, account))
            case "task":
                task = await self.door.verb("read", id=given.get("id"))
                if task is not None:
                    self.caller.check(need.verb, name, task["tenant"])

    def _show(self, need: Need, answer: Any) -> Any:
        """What of an answer is this caller's to see."""
        may = self._filter(need.verb)
        if need.of == "rows":
            return [row for row in answer if may(row["tenant"])]
        if need.of == "table":
            tenants = {name: terms for name, terms in answer["tenants"].items() if may(name)}
            return {**answer, "tenants": tenants}
        if need.of == "page":
            return {**answer, "rows": [row for row in answer["rows"] if may(row["tenant"])]}
        if need.of == "task" and isinstance(answer, dict) and not may(answer["tenant"]):
            raise DeniedError(f"{self.caller.name} may not {need.verb} for this task's tenant")
        return answer


def write_unknown(door: Resource, tenant: str) -> str:
    """For who may not know of other tenants."""
    return f'{door.name} has no tenant "{tenant[:100]}" that this caller may know of'


def _read_keys(value: object) -> list[str]:
    return [_read_text(key) for key in value] if isinstance(value, Mapping) else [ALL]


def _read_text(value: object) -> str:
    """What is no text is nobody's name; the verb itself says what is wrong with it."""
    return value if isinstance(value, str) else ALL
