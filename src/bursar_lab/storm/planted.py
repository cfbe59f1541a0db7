"""Ten mistakes, one in each layer, that a storm of its kind must find.

    python -m bursar_lab.storm.planted NAME serve ...        a node, as `bursar serve ...`
    python -m bursar_lab.storm.planted NAME client SPEC      a client, as client_process

Each replaces one function of the product by one that somebody could have written, in the process that is
started here and nowhere else: the product has no hook for it. Its first line says what the programmer
thought, the rest what is wrong with that.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

LATER_S = 1.0
HOUR_NS = 3_600_000_000_000


@dataclass(frozen=True)
class Bug:
    name: str
    layer: str
    kind: str
    """The storm that finds it."""
    promise: str
    """What the checker then calls broken."""
    plant: Callable[[], None]
    rights: bool = False
    """Whether that storm must have tokens."""


BUGS: dict[str, Bug] = {}


def plants(
    name: str, layer: str, kind: str, promise: str, rights: bool = False
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(plant: Callable[[], None]) -> Callable[[], None]:
        BUGS[name] = Bug(name, layer, kind, promise, plant, rights)
        return plant

    return register


def put_in(owner: Any, name: str, wrong: Any) -> None:
    """In the place of what has that name; a name that is gone from the product is a mistake here."""
    assert hasattr(owner, name), f"{owner.__name__} has no {name} any more: plant the bug elsewhere"
    setattr(owner, name, wrong)


@plants("cancelled-kept", "door", "quota", "quotas")
def keep_what_was_cancelled() -> None:
    """ "A caller that is cancelled asks no more, so there is nothing to do."

    What it asked for is granted all the same, to nobody, and stays held: cancelling at any await must
    leave nothing behind."""
    from bursar.resource.asking import Asking

    put_in(Asking, "_abandon", lambda self, ticket: None)


@plants("lot-without-end", "lot", "rate", "rates")
def let_lots_live_on() -> None:
    """ "A lot is charged already, so it may be spent whenever its holder likes."

    It is charged to a period: tokens that are spent after it come on top of those of a later one."""
    from bursar.resource.hand import Hand
    from bursar.resource.lots import Lot

    def put(self: Any, tenant: str, granted: Any) -> None:
        self.end(tenant)
        lot = self.lots[tenant] = Lot(tenant, granted.lot or granted)
        lot.until += HOUR_NS
        lot.deadline = self._deadlines.add(lot.until, self._expire, lot)

    put_in(Hand, "put", put)


@plants("early-return-lost", "session", "quota", "quotas")
def miss_what_came_back_early() -> None:
    """ "What is still being decided was not granted yet, so it cannot be given back."

    A client that gives up says so at once, mostly before the answer. The session has to remember it, or
    the grant that follows is held for somebody who has left."""
    from bursar.resource import wire
    from bursar.resource.clients import Clients

    async def give_back(self: Any, session: Any, message: Any) -> Any:
        for told in message.told:
            self.lots.hear(session, told)
        for number, unused in message.grants:
            if number in session.grants:
                await self._return(session, number, unused)
        return wire.Done()

    put_in(Clients, "_give_back", give_back)


@plants("answered-before-sync", "journal", "quota", "quotas")
def sync_in_the_background() -> None:
    """ "The disk is slow: what was appended is written once a second, many records at a time."

    But whoever waits for the sync goes on at once, and is told. kill -9 within that second forgets what
    was told and sent: a key is charged again, units are in two ledgers."""
    from bursar.runtime.journal import FileJournal

    async def flush_later(self: Any) -> None:
        await asyncio.sleep(LATER_S)
        await self._flush()

    async def sync(self: Any) -> None:
        self._check()
        if self._work is None and (self._pending or self._replacing):
            self._work = asyncio.get_running_loop().create_task(flush_later(self))

    put_in(FileJournal, "sync", sync)


@plants("checked-before-begin", "store", "claim", "claims")
def check_outside_of_the_transaction() -> None:
    """ "Reading is cheap: versions are compared on the reader's connection, and the writer only writes."

    Between the two another process commits. Two compare-and-sets of one version then both succeed, and
    a name has two owners."""
    from bursar.stores.bounds import check_operations
    from bursar.stores.draft import Draft
    from bursar.stores.sqlite import SqliteStore
    from bursar.world import Check, CheckAbsent, Delete, Set

    def write(database: Any, session: int, operations: Sequence[Any]) -> list[Any]:
        bare = [
            replace(each, version=None) if isinstance(each, Set | Delete) else each
            for each in operations
            if not isinstance(each, Check | CheckAbsent)
        ]
        results = iter(database.transact(session, bare))
        return [None if isinstance(each, Check | CheckAbsent) else next(results) for each in operations]

    async def transact(self: Any, operations: Sequence[Any]) -> Any:
        check_operations(operations)
        session, fixed = self._session, tuple(operations)
        self._read(lambda database: Draft(database, session, 0).apply(fixed))
        return await self._write(lambda database: write(database, session, fixed))

    put_in(SqliteStore, "transact", transact)


@plants("credited-twice", "book", "quota", "quotas")
def credit_what_is_not_durable_again() -> None:
    """ "A transfer is new if its number is above the last that is durable."

    A message carries everything that was not acknowledged. One that comes while the line of the one
    before it is being synced brings the same units a second time."""
    from bursar.quotas.entries import Received
    from bursar.quotas.ledger import Ledger

    def receive(self: Any, account: Any, sender: str, units: Sequence[tuple[int, int]]) -> bool:
        channel = account.channel(sender)
        last, total = channel.received, 0
        for number, amount in units:
            if number == last + 1 and amount > 0:
                last, total = number, total + amount
        if total == 0:
            return False
        channel.receiving = last
        self._write(Received(account.name, sender, last, total), credits=True)
        return True

    put_in(Ledger, "receive", receive)


@plants("settlement-dropped", "courier", "quota", "quotas")
def drop_settlements() -> None:
    """ "The daemon did not answer; the connection is made anew, and whatever was asked is asked again."

    Whatever waits for an answer is. A settlement whose caller has been told that it is done is not: it
    has to be kept and sent until the daemon knows."""
    from bursar.resource.line import Line

    put_in(Line, "tell_later", lambda self, message: None)


@plants("requests-for-tokens", "metrics", "rate", "metrics")
def count_requests() -> None:
    """ "A grant is counted when it is made."

    As one, whatever its amount. Counters count tokens, and requests under another name; whoever bills or
    alerts by `bursar_tenant_granted_total` is wrong by the size of the requests."""
    from bursar.resource.tallies import TallyCounter

    def grant(self: Any, granted: Any) -> None:
        if not granted.replayed:
            self.add(1, 1)
            if granted.fallback in ("keep", "safe"):
                self.fallback += 1
                self.fallback_requests += 1

    put_in(TallyCounter, "grant", grant)


@plants("settled-on-paper", "HTTP", "quota", "quotas")
def answer_without_settling() -> None:
    """ "The caller need not wait for the ledger: the grant is taken off the list, and that is all."

    204 says that it is settled. Nobody told the ledger, where all of it stays held until it expires."""
    from bursar.api import acquiring
    from bursar.api.desk import Answered

    async def end(call: Any, used: int | None) -> Any:
        holdings = call.desk.holdings
        if holdings.find_over(call.path["id"]) is None:
            held = acquiring._find(call)
            holdings._drop(held)
            holdings._remember(held, used)
        return Answered(status=204)

    put_in(acquiring, "_end", end)


@plants("revoked-goes-on", "rights", "rate", "rights", rights=True)
def look_rights_up_once() -> None:
    """ "Who a client is, it says once; so what it may do is looked up once."

    A token that is revoked must be worth nothing a second later, also for sessions that it opened."""
    from bursar.fleet.register import Register

    def remember(self: Any, *ids: str) -> Callable[[], Any]:
        scopes = tuple(scope for token in self._find_good(ids) for scope in token.scopes)
        return lambda: scopes

    put_in(Register, "_remember", remember)


def list_command(planted: str, module: str, word: str) -> list[str]:
    """How a process of a storm is started: as it is, or with a bug in it."""
    if not planted:
        return [sys.executable, "-m", module, *(["serve"] if word == "serve" else [])]
    return [sys.executable, "-m", "bursar_lab.storm.planted", planted, word]


def main(name: str, word: str, *arguments: str) -> None:
    BUGS[name].plant()
    if word == "serve":
        from bursar.cli import main as run

        sys.argv = ["bursar", "serve", *arguments]
        run()
    else:
        from bursar_lab.storm import client_process

        asyncio.run(client_process.main(json.loads(Path(arguments[0]).read_text())))


if __name__ == "__main__":
    main(*sys.argv[1:])
