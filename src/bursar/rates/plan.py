"""Can the reservations be met, before anything runs?

Every tenant may place its tokens on any of its servers: if even so they do not fit, no demand can
make them fit. The maximum flow of `allocation` decides, and its minimum cut names the tenants
and the servers. A remedy is offered only if the allocation, done again with it, fits.

Not said here: whether a demand that falls unevenly on a tenant's servers can be served. That is
what `bursar simulate` is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from bursar.allocation.reservations import Allocation, allocate
from bursar.errors import UsageError

Whole = npt.NDArray[np.int64]
TRIES_MAX = 16
"""Placements that are tried as a remedy."""


@dataclass(frozen=True)
class Question:
    """Tokens of a period: what each server can do, what each tenant is promised and where its
    data is (None: everywhere)."""

    capacity: Mapping[str, int]
    reservation: Mapping[str, int]
    servers: Mapping[str, Sequence[str] | None]

    def __post_init__(self) -> None:
        if not self.capacity:
            raise UsageError("there is no server to plan for; add one under servers")


class Change(msgspec.Struct, frozen=True):
    """A server's capacity or a tenant's reservation becomes `value`; or, for a placement, `tenant`
    may use `server` too."""

    what: Literal["placement", "capacity", "reservation"]
    tenant: str | None = None
    server: str | None = None
    before: int | None = None
    value: int | None = None


Remedy = tuple[Change, ...]
"""Changes that are enough together; one, where one is enough."""


class Shortage(msgspec.Struct, frozen=True):
    """These tenants must place `required` tokens on these servers, which can do `capacity`."""

    tenants: Mapping[str, int]
    servers: Mapping[str, int]
    required: int
    capacity: int
    remedies: tuple[Remedy, ...] = ()

    @property
    def missing(self) -> int:
        return self.required - self.capacity


class Plan(msgspec.Struct, frozen=True):
    reserved: int
    capacity: int
    shortages: tuple[Shortage, ...] = ()

    @property
    def feasible(self) -> bool:
        return not self.shortages


def plan(question: Question) -> Plan:
    """Which reservations cannot be met, why, and what would do."""
    shortages = tuple(_with_remedies(question, shortage) for shortage in _find_shortages(question))
    reserved, capacity = sum(question.reservation.values()), sum(question.capacity.values())
    return Plan(reserved, capacity, shortages)


def _solve(question: Question) -> Allocation:
    names = list(question.capacity)
    column = {name: number for number, name in enumerate(names)}
    allowed = np.zeros((len(question.reservation), len(names)), bool)
    for row, tenant in enumerate(question.reservation):
        where = question.servers.get(tenant)
        allowed[row] = where is None
        for server in where or ():
            allowed[row, column[server]] = True
    reservation = np.array(list(question.reservation.values()), np.int64)
    demand = np.where(allowed, reservation[:, None], 0)
    return allocate(demand, np.array(list(question.capacity.values()), np.int64), reservation)


def _find_shortages(question: Question) -> list[Shortage]:
    """The minimum cut, taken apart into groups that have nothing to do with each other."""
    if not question.reservation:
        return []
    cut = _solve(question).cut
    if cut is None:
        return []
    names, tenants = list(question.capacity), list(question.reservation)
    inside = {names[index] for index in cut.servers}
    users = {
        tenant: [name for name in question.servers.get(tenant) or names if name in inside]
        for tenant in (tenants[index] for index in cut.tenants)
    }
    return [_describe(question, group) for group in _group(users)]


def _group(users: Mapping[str, Sequence[str]]) -> list[tuple[list[str], list[str]]]:
    """(tenants, servers) that are joined by use."""
    groups: list[tuple[list[str], list[str]]] = []
    for tenant, servers in users.items():
        touching = [group for group in groups if set(group[1]) & set(servers)]
        joined = ([tenant], list(servers))
        for group in touching:
            groups.remove(group)
            joined = (group[0] + joined[0], list(dict.fromkeys(group[1] + joined[1])))
        groups.append(joined)
    return groups


def _describe(question: Question, group: tuple[Iterable[str], Iterable[str]]) -> Shortage:
    tenants = {name: question.reservation[name] for name in group[0]}
    servers = {name: question.capacity[name] for name in group[1]}
    return Shortage(tenants, servers, sum(tenants.values()), sum(servers.values()))


# --- remedies ------------------------------------------------------------------------------------


def _with_remedies(question: Question, shortage: Shortage) -> Shortage:
    """The least intrusive first: use a server that has room, buy capacity, promise less."""
    remedies = [
        remedy
        for remedy in (
            _find_placement(question, shortage),
            _find_capacity(question, shortage),
            _find_reservation(question, shortage),
        )
        if remedy is not None
    ]
    return msgspec.structs.replace(shortage, remedies=tuple(remedies))


def _is_enough(question: Question, remedy: Remedy, shortage: Shortage) -> bool:
    """Whether these tenants' tokens fit with the changes made. Other groups may stay short."""
    rest = _find_shortages(apply(question, remedy))
    return not any(set(other.tenants) & set(shortage.tenants) for other in rest)


def apply(question: Question, remedy: Remedy) -> Question:
    """The question with the changes made."""
    capacity, reservation, servers = (
        dict(question.capacity),
        dict(question.reservation),
        dict(question.servers),
    )
    for change in remedy:
        if change.what == "capacity":
            assert change.server is not None and change.value is not None
            capacity[change.server] = change.value
        elif change.what == "reservation":
            assert change.tenant is not None and change.value is not None
            reservation[change.tenant] = change.value
        else:
            assert change.tenant is not None and change.server is not None
            servers[change.tenant] = [*(servers.get(change.tenant) or ()), change.server]
    return Question(capacity, reservation, servers)


def _find_placement(question: Question, shortage: Shortage) -> Remedy | None:
    """A tenant that could do with one more server, which is not short itself: the servers with
    the most capacity are tried with the largest tenants."""
    outside = sorted(
        (name for name in question.capacity if name not in shortage.servers),
        key=lambda name: -question.capacity[name],
    )
    largest = sorted(shortage.tenants, key=lambda name: -shortage.tenants[name])
    for tenant, server in [(tenant, server) for server in outside for tenant in largest][:TRIES_MAX]:
        remedy = (Change("placement", tenant=tenant, server=server),)
        if _is_enough(question, remedy, shortage):
            return remedy
    return None


def _find_capacity(question: Question, shortage: Shortage) -> Remedy:
    """One server that can do more, or what is too much on each: what is missing, either way."""
    for server, before in sorted(shortage.servers.items(), key=lambda item: -item[1])[:TRIES_MAX]:
        remedy = (Change("capacity", server=server, before=before, value=before + shortage.missing),)
        if _is_enough(question, remedy, shortage):
            return remedy
    over = dict(zip(question.capacity, _solve(question).overloaded, strict=True))
    return tuple(
        Change("capacity", server=server, before=before, value=before + int(over[server]))
        for server, before in shortage.servers.items()
        if over[server]
    )


def _find_reservation(question: Question, shortage: Shortage) -> Remedy:
    """One tenant that is promised less, or what each falls short of: what is missing, either way."""
    for tenant, before in sorted(shortage.tenants.items(), key=lambda item: -item[1])[:TRIES_MAX]:
        value = before - shortage.missing
        remedy = (Change("reservation", tenant=tenant, before=before, value=value),)
        if value >= 0 and _is_enough(question, remedy, shortage):
            return remedy
    short = dict(zip(question.reservation, _solve(question).shortfall, strict=True))
    return tuple(
        Change("reservation", tenant=tenant, before=before, value=before - int(short[tenant]))
        for tenant, before in shortage.tenants.items()
        if short[tenant]
    )
