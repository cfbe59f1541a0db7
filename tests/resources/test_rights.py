"""Who may do what, over the wire: every request, with every right, as a client that does not care what it
was told sends it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.resources.places import make_policy
from tests.resources.rights_table import (
    ALLOWED,
    DENIED,
    POLICY,
    RESOURCES,
    RIGHTS,
    TENANTS,
    USES,
    Outcome,
    Use,
    find_mistakes,
    read_tenants,
)

import bursar
from bursar.claims.layout import Layout
from bursar.claims.model import State, Task, encode
from bursar.errors import DeniedError, UsageError
from bursar.fleet import audit
from bursar.fleet.rights import EVERYTHING, Known, Scope
from bursar.fleet.tokens import create_token, revoke_token
from bursar.resource import door, guarded, wire
from bursar.resource.clients import Clients
from bursar.resource.guarded import NEEDS, Guarded
from bursar.resource.sessions import Session
from bursar.runtime import kinds
from bursar.runtime.client import Bursar
from bursar.runtime.daemon import Daemon
from bursar.world import SECOND_NS

things = itertools.count()


class Wire:
    """A daemon, its administrator, and a client for every token."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.closed = False
        self.url = f"bursar://{daemon.host.world.listening}"
        self.clients: dict[Scope, Bursar] = {}
        self.prepared: dict[tuple[str, str, str], Any] = {}

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            await self.daemon.close()

    async def make_token(self, *scopes: Scope) -> tuple[str, str]:
        world = self.daemon.host.world
        token, text = await create_token(world.store, scopes, by="test", at_ns=world.clock.wall())
        return token.id, text

    async def connect(self, scope: Scope) -> Bursar:
        if scope not in self.clients:
            _, text = await self.make_token(scope)
            self.clients[scope] = await connect_soon(self.url, text)
        return self.clients[scope]

    async def ask(self, scope: Scope, message: Any) -> Any:
        """As any client can, whatever it knows of the daemon's resources."""
        b = await self.connect(scope)
        line = b._connected._far._line  # type: ignore[union-attr]
        _, reply = await line.call(message, 5 * SECOND_NS)
        return reply

    async def prepare(self, use: Use, tenant: str) -> Any:
        """What the administrator does for the tenant before."""
        known = (use.before, use.resource, tenant)
        if use.before and known not in self.prepared:
            admin = (await self.connect(EVERYTHING)).resource(use.resource)
            if use.before == "grant":
                grant = await admin.acquire(tenant, 2)
                self.prepared[known] = grant.id
            else:
                held = f"{tenant}-{next(things)}"
                await admin.claim([f"{held}:E"], tenant)
                names = f"{held}:E"
                self.prepared[known] = await admin.verb("submit", tenant=tenant, names=names)
        return self.prepared.get(known)

    async def attempt(self, scope: Scope, use: Use, tenant: str) -> Outcome:
        for each in TENANTS if use.of == "rows" else (tenant,):
            prepared = await self.prepare(use, each)
        reply = await self.ask(scope, write_request(use, tenant, prepared))
        if isinstance(reply, wire.Denied):
            return DENIED
        if isinstance(reply, wire.Misused) and "there is no resource" in reply.why:
            return DENIED  # it may not even know of it
        shown = read_tenants(msgspec.to_builtins(reply))
        if use.of == "rows":
            return shown
        return f"shows {shown}" if "globex" in shown - {tenant} else ALLOWED


async def connect_soon(url: str, text: str) -> Bursar:
    """As soon as the daemon knows the token."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await bursar.connect(url, token=text)
            except DeniedError:
                await asyncio.sleep(0.02)


def write_request(use: Use, tenant: str, prepared: Any) -> Any:
    number, name = 10**15 + next(things), use.resource
    match use.name:
        case "acquire":
            names = (f"vm-{number}:E",) if RESOURCES[name] == "claim" else ()
            return wire.Take(number, name, tenant, 1, 0, names=names)
        case "settle":
            return wire.Settle(name, prepared, 1)
        case "grow":
            return wire.Grow(name, prepared, 1)
        case "extend":
            return wire.Extend(name, prepared, 60 * 10**9)
        case "explain":
            return wire.Explain(name, tenant)
        case "statistics":
            return wire.Count(name)
    month = "@2000-01-01..2000-02-01" if name == "monthly" else ""
    arguments: dict[str, dict[str, Any]] = {
        "top_up": {"account": tenant, "amount": 1},
        "top_up_account": {"account": f"{tenant}{month}", "amount": 1},
        "adjust": {"account": f"{tenant}{month}", "amount": 1, "reason": "why"},
        "set_limit": {"tenant": tenant, "limit": 100_000},
        "fence": {"node": "nobody"},
        "accept": {"account": "nobody"},
        "announce": {"tenant": tenant, "tokens": 1, "after": 60},
        "set_tenants": {"tenants": {tenant: {"limit": "1k/s"}}},
        "show_tenant": {"tenant": tenant},
        "submit": {"tenant": tenant, "names": f"vm-{number}:E"},
        "holders": {"of": "shared"},
        "force_release": {"of": f"nothing-{number}"},
        **{verb: {"id": prepared} for verb in ("cancel", "read", "retry", "discard", "why")},
        "wait_for_some": {"ids": [f"over-{number}" for number in range(len(TENANTS))], "timeout": 0},
        "wait_lost": {"id": prepared, "timeout": 0},
        "wait_for": {"id": prepared, "timeout": 0},
    }
    return wire.Do(name, use.name.removesuffix("_account"), arguments.get(use.name, {}))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Wire]:
    daemon = await Daemon.open(make_policy(tmp_path, POLICY))
    place = Wire(daemon)
    admin = await place.connect(EVERYTHING)
    await admin.set_tenants("customers", {tenant: {"limit": "1k/s"} for tenant in TENANTS})
    async with asyncio.timeout(20):
        for name in RESOURCES:
            while not (await admin.statistics(name)).ready:
                await asyncio.sleep(0.01)
    for number, tenant in enumerate(TENANTS):  # so that there is something of everybody's to be seen
        for name in ("cache", "customers", "disk", "records"):
            await admin.resource(name).acquire(tenant, wait=2)
        await admin.claim("shared:S", tenant=tenant, wait=5)
        given_up = Task(id=f"t{next(things)}", tenant=tenant, needs=(("vm", "E"),), outcome="dead", kept=True)
        await daemon.host.world.store.create(Layout("things").dead(given_up.id), encode(given_up))
        over = Task(
            id=f"over-{number}",
            tenant=tenant,
            needs=(("vm", "E"),),
            state=State.RELEASED,
            outcome="ok",
            kept=True,
            ended=daemon.host.world.clock.wall(),
        )
        await daemon.host.world.store.create(Layout("things").released(over.id), encode(over))
    yield place
    for b in place.clients.values():
        await b.close()
    await place.close()


async def test_every_request_with_every_right_is_allowed_or_denied_as_the_table_says(place: Wire) -> None:
    assert await find_mistakes(place.attempt) == []


def _no(*_: Any, **__: Any) -> None:
    return None


async def _nothing(*_: Any, **__: Any) -> None:
    return None


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "acquiring is not checked": lambda patch: patch.setattr(Session, "may_acquire", lambda *_: True),
    "settling is not checked": lambda patch: patch.setattr(Guarded, "check", _no),
    "explain and others are not checked": lambda patch: patch.setattr(Known, "check", _no),
    "verbs are not checked": lambda patch: patch.setattr(Guarded, "_check_need", _nothing),
    "statistics are not cut": lambda patch: patch.setattr(door, "restrict", lambda found, *_: found),
    "answers are not cut": lambda patch: patch.setattr(Guarded, "_show", lambda self, need, answer: answer),
    "all verbs are one": lambda patch: patch.setattr(
        Known,
        "may",
        lambda self, verb, resource="*", tenant="*": any(
            scope.allows(each, resource, tenant) for scope in self._find() for each in scope.verbs
        ),
    ),
    "an account is anybody's": lambda patch: patch.setattr(guarded, "find_tenant", lambda *_: "acme"),
    "fences are of one tenant": lambda patch: patch.setitem(
        NEEDS,
        "fence",
        guarded.Need("change", "rows", by=True),  # type: ignore[arg-type]
    ),
}


async def test_the_table_notices_whatever_is_not_enforced(
    place: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = tuple(use for use in USES if use.resource in ("budget", "things", "customers"))
    assert await find_mistakes(place.attempt, uses) == []
    for broken, apply in BREAKS.items():
        with monkeypatch.context() as patch:
            apply(patch)
            assert await find_mistakes(place.attempt, uses, most=1), broken


async def test_every_verb_of_every_kind_is_in_the_table(place: Wire) -> None:
    verbs = {verb for each in place.daemon.host.resources.values() for verb in each.verbs}
    assert verbs == set(NEEDS) == {use.name for use in USES} & set(NEEDS)


async def test_whoever_may_do_nothing_with_a_resource_is_not_told_of_it(place: Wire) -> None:
    b = await place.connect(RIGHTS[-1])
    assert b.resources == ("things",)
    with pytest.raises(UsageError) as caught:
        b.resource("thing")
    assert "things" in str(caught.value) and "budget" not in str(caught.value)
    assert (await place.connect(Scope(verbs=("join",)))).resources == ()


async def test_what_is_said_of_a_tenant_that_is_not_there_names_no_others(place: Wire) -> None:
    for scope, use in itertools.product(RIGHTS, USES):
        if use.of == "tenant" and not use.before and "acme/*" in scope.tenants and use.verb in scope.verbs:
            reply = await place.ask(scope, write_request(use, "acme/zzzzzzzzzzzz", None))
            assert "globex" not in str(reply), (use, reply)
    top_up = wire.Do("monthly", "top_up", {"account": "acme/zzzzzzzzzzzz@2000-01-01", "amount": 1})
    reply = await place.ask(Scope(verbs=("change",), tenants=("acme/*",)), top_up)
    assert isinstance(reply, wire.Refusal) and "globex" not in str(reply)


async def test_tenants_are_set_all_or_none_by_who_may_change_each_of_them(place: Wire) -> None:
    b = await place.connect(Scope(verbs=("change", "read"), tenants=("acme", "acme/*")))
    with pytest.raises(DeniedError, match="globex"):
        await b.set_tenants("customers", {"acme": {"limit": "7/s"}, "globex": {"limit": "7/s"}})
    with pytest.raises(DeniedError):
        await b.set_tenants("customers", {"*": {"limit": "7/s"}})
    await b.set_tenants("customers", {"acme/new": {"limit": "7/s"}})
    assert set(await b.tenants("customers")) == {"acme", "acme/search", "acme/new"}
    admin = await place.connect(EVERYTHING)
    found = await admin.tenants("customers")
    assert {name: terms["limit"] for name, terms in found.items()} == {
        **dict.fromkeys(TENANTS, "1k/s"),
        "acme/new": "7/s",
    }
    newest = (await audit.list_entries(place.daemon.host.world.store))[-1]
    assert (newest.what, newest.by.partition(" ")[0]) == ("tenant", "token")


async def test_a_grant_of_another_tenant_is_not_settled_and_stays_as_it_is(place: Wire) -> None:
    admin = await place.connect(EVERYTHING)
    grant = await admin.resource("budget").acquire("globex", 7)
    acme = (await place.connect(Scope(tenants=("acme",), verbs=("acquire",)))).resource("budget")
    with pytest.raises(DeniedError, match="globex"):
        await acme.settle(grant.id, 0)
    own = await acme.acquire("acme", 7)
    await acme.settle(own.id, 3)
    grant.settle(5)
    await grant.release()
    tenants = (await admin.statistics("budget")).part["tenants"]
    assert (tenants["globex"]["spent"], tenants["acme"]["spent"]) == (5, 3)


async def test_changes_over_the_wire_stand_in_the_audit_under_who_made_them(place: Wire) -> None:
    id, text = await place.make_token(Scope(verbs=("change", "acquire")))
    async with await connect_soon(place.url, text) as b:
        budget, claims = b.resource("budget"), b.resource("things")
        await budget.acquire("acme", 1)
        await budget.verb("top_up", account="acme", amount=5, by="somebody else")
        await budget.verb("set_limit", tenant="globex", limit=200_000)  # not used before
        await b.claim("vm-1:E", tenant="acme", resource="things")
        (removed,) = await claims.verb("force_release", of="vm-1")
    store = place.daemon.host.world.store
    lines = [(entry.by, entry.what, entry.name, entry.detail) for entry in await audit.list_entries(store)]
    assert lines[-3:] == [
        (f"token {id}", "top-up", "budget", "acme: +5"),
        (f"token {id}", "limit", "budget", "globex: 200000"),
        (f"token {id}", "release", "things", f"vm-1 from {removed} of acme"),
    ]


async def test_revoking_ends_what_waits_and_recalls_what_was_ahead(place: Wire) -> None:
    id, text = await place.make_token(Scope(tenants=("acme",)))
    async with await connect_soon(place.url, text) as b:
        cache, claims = b.resource("cache"), b.resource("things")
        await (await place.connect(EVERYTHING)).claim("vm-9:E", tenant="globex")
        waiting = asyncio.create_task(wait_for_claim(claims))
        await have_a_lot(cache)
        world = place.daemon.host.world
        await revoke_token(world.store, id, by="test", at_ns=world.clock.wall())
        async with asyncio.timeout(10):
            with pytest.raises(DeniedError, match="revoked"):
                await waiting
            while cache.hand.lots:
                await asyncio.sleep(0.005)
        with pytest.raises(DeniedError):
            await cache.acquire("acme")
        assert cache.try_acquire("acme") is None
    assert not place.daemon.host.resources["things"].asking.waiting


async def test_a_revoked_client_does_not_go_on_by_itself_as_if_the_daemon_were_away(place: Wire) -> None:
    id, text = await place.make_token(Scope(tenants=("acme",)))
    world = place.daemon.host.world
    async with await connect_soon(place.url, text) as b:
        cache = b.resource("cache")
        for _ in range(30):
            await cache.acquire("acme", wait=1)  # what it may go on with is what it has been granted
        await asyncio.sleep(1.1)
        await cache.acquire("acme", wait=1)
        await revoke_token(world.store, id, by="test", at_ns=world.clock.wall())
        async with asyncio.timeout(10):
            while not is_denied(await raw_call(b, wire.Alive())):
                await asyncio.sleep(0.01)
        for _ in range(12):  # the last of them are answered late
            with pytest.raises(DeniedError):
                await cache.acquire("acme")
        await place.close()
        for _ in range(3):
            with pytest.raises(DeniedError):
                await cache.acquire("acme")
            assert cache.try_acquire("acme") is None


async def wait_for_claim(claims: Any) -> None:
    await claims.claim(["vm-9:E"], "acme", wait=60)


async def have_a_lot(resource: Any) -> None:
    """A lot that has most of its time before it."""
    async with asyncio.timeout(10):
        while not resource.hand.lots:
            resource.try_acquire("acme")
            await asyncio.sleep(0.01)


async def test_a_revoked_client_may_give_back_and_is_then_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bursar.runtime.daemon.Clients", with_short_grace)
    daemon = await Daemon.open(make_policy(tmp_path, POLICY))
    place = Wire(daemon)
    id, text = await place.make_token(Scope(tenants=("acme",)))
    b = await connect_soon(place.url, text)
    grants = [await b.claim(f"vm-{n}:E", tenant="acme") for n in range(2)]
    budgeted = await b.resource("budget").acquire("acme", 5)
    world = daemon.host.world
    await revoke_token(world.store, id, by="test", at_ns=world.clock.wall())
    async with asyncio.timeout(10):
        while not is_denied(await raw_call(b, wire.Alive())):
            await asyncio.sleep(0.01)
        assert daemon.clients.held == 3
        await grants[0].release()
        while daemon.clients.held == 3:
            await asyncio.sleep(0.01)
        with pytest.raises(DeniedError):
            await budgeted.release()  # what was used of it is not its to say any more
        while daemon.clients.held:
            await asyncio.sleep(0.01)
    assert not await daemon.host.resources["things"].verb("holders", of="vm-0")
    (kept,) = await daemon.host.resources["things"].verb("holders", of="vm-1")
    assert kept["tenant"] == "acme", "as the policy says of holders that are gone"
    await b.close()
    await daemon.close()


def with_short_grace(*args: Any, **named: Any) -> Clients:
    return Clients(*args, **named, grace_ns=SECOND_NS)


async def raw_call(b: Bursar, message: Any) -> Any:
    line = b._connected._far._line  # type: ignore[union-attr]
    return await line._call(line.peer, message, SECOND_NS)


def is_denied(reply: Any) -> bool:
    return isinstance(reply, wire.NotOpened)


def test_every_kind_is_tried() -> None:
    assert set(RESOURCES.values()) == set(kinds.MODULES)


async def test_the_fleet_is_told_to_who_may_read_everything(place: Wire) -> None:
    """Where nodes are and what troubles them is nobody's tenant's."""
    for scope in RIGHTS:
        reply = await place.ask(scope, wire.Fleet())
        assert isinstance(reply, wire.FleetTold if scope == Scope(verbs=("read",)) else wire.Denied), scope


async def test_what_is_left_out_of_statistics_is_not_told_in_their_totals(place: Wire) -> None:
    """An excerpt is taken of what the caller may read."""
    await (await (await place.connect(EVERYTHING)).resource("disk").acquire("globex", 7, wait=5)).release()
    message = wire.Count("disk", 1, ("globex",))
    reply = await place.ask(Scope(verbs=("read",), tenants=("acme",)), message)
    assert reply.statistics.tenants.keys() == {"acme"}
    assert reply.statistics.totals.tenants == 1
    assert reply.statistics.totals.granted == reply.statistics.tenants["acme"].granted
