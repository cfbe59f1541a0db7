"""Tokens fetched ahead, so that a client at a distance can try without asking.

A lot is one ordinary acquisition, charged to the tenant at the daemon before any of it is used. It
is good for the time that the kind says, counted here from the *asking*, and then what was not used
is given back. If the client dies the daemon counts the whole lot as used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bursar.errors import NetworkError
from bursar.resource import Grant, check_amount, check_name
from bursar.runtime.messages import Granted, Take

if TYPE_CHECKING:
    from bursar.runtime.remote import Connection, RemoteResource

TENANTS_MAX = 1_000
REFUSED_PAUSE_NS = 50_000_000
ANSWER_NS = 250_000_000


@dataclass(slots=True)
class Lot:
    number: int
    tokens: int
    left: int
    until: int


class Prefetch:
    """The lots of one resource, one a tenant."""

    def __init__(self, resource: RemoteResource, connection: Connection) -> None:
        self._resource = resource
        self._connection = connection
        self._tokens = self._lifetime_ns = 0
        self._lots: dict[str, Lot] = {}
        self._fetching: dict[str, None] = {}

    def configure(self, tokens: int, lifetime_ns: int) -> None:
        self._tokens, self._lifetime_ns = tokens, lifetime_ns

    def take(self, tenant: str, amount: int) -> Grant | None:
        check_name("tenant", tenant)
        check_amount(amount)
        if self._tokens <= 0 or self._lifetime_ns <= 0:
            return None
        lot = self._lots.get(tenant)
        if lot is not None and self._connection.clock.now() >= lot.until:
            self._return(tenant)
            lot = None
        if lot is None or lot.left < amount:
            self._fetch(tenant)
            return None
        lot.left -= amount
        return Grant(self._resource, tenant, amount)

    def _fetch(self, tenant: str) -> None:
        if tenant in self._fetching or len(self._lots) + len(self._fetching) >= TENANTS_MAX:
            return
        self._return(tenant)
        self._fetching[tenant] = None
        self._connection.spawn(self._fetch_lot(tenant))

    async def _fetch_lot(self, tenant: str) -> None:
        try:
            if not await self._fetch_once(tenant):
                # Asking again at once would bring the same.
                await self._connection.clock.sleep(REFUSED_PAUSE_NS)
        finally:
            self._fetching.pop(tenant, None)

    async def _fetch_once(self, tenant: str) -> bool:
        connection = self._connection
        number, asked_at = connection.next_number(), connection.clock.now()
        take = Take(number, self._resource.name, tenant, self._tokens, 0)
        try:
            reply = await connection.call_take(take, ANSWER_NS)
        except NetworkError:
            connection.give_back(number, 0)
            return False
        if not isinstance(reply, Granted):
            return False
        until = asked_at + self._lifetime_ns
        self._lots[tenant] = Lot(number, reply.amount, reply.amount, until)
        connection.spawn(self._end_lot(tenant, number, until))
        return True

    async def _end_lot(self, tenant: str, number: int, until: int) -> None:
        await self._connection.clock.sleep(until - self._connection.clock.now())
        lot = self._lots.get(tenant)
        if lot is not None and lot.number == number:
            self._return(tenant)

    def _return(self, tenant: str) -> None:
        lot = self._lots.pop(tenant, None)
        if lot is not None:
            self._connection.give_back(lot.number, lot.tokens - lot.left)

    def stop(self) -> None:
        for tenant in list(self._lots):
            self._return(tenant)
