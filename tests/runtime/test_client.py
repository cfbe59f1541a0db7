"""The noun and the verb: in this process, and at a daemon; and when the daemon is away."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bursar
from bursar.errors import Refused, Unknown, UnreachableError, UsageError
from bursar.policy import Policy, WithoutBursar
from bursar.resource import wire
from bursar.resource.fallback import SafeRate
from bursar.resource.far import FarDecider
from bursar.resource.line import Line
from bursar.runtime.client import Bursar, read_url
from bursar.runtime.daemon import Daemon
from bursar.runtime.routes import Address
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS

from .conftest import MakePolicy, Serve, url_of
from .toy import ToyDecider


def toy_of(daemon: Daemon) -> ToyDecider:
    decider = daemon.host.resources["llm"].decider
    assert isinstance(decider, ToyDecider)
    return decider


async def count(b: Bursar) -> Any:
    """What the toy has counted for acme."""
    return msgspec.to_builtins((await b.statistics("llm")).part)["tenants"]["acme"]


async def until(condition: object, timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


@pytest.fixture(params=["embedded", "remote"])
async def b(request: pytest.FixtureRequest, make_policy: MakePolicy, serve_policy: Serve) -> Bursar:
    """The same tests hold for both: users cannot tell them apart."""
    if request.param == "embedded":
        return await bursar.connect(make_policy())
    daemon = await serve_policy(make_policy())
    return await bursar.connect(url_of(daemon))


async def test_acquire_settle_refuse_explain(b: Bursar) -> None:
    async with b:
        llm = b.resource("llm")
        async with llm.acquire("acme", 40) as grant:
            assert (grant.amount, grant.tenant, grant.resource, grant.fallback) == (40, "acme", "llm", None)
            grant.settle(10)
        async with llm.acquire("acme", 90):
            with pytest.raises(Refused) as caught:
                await llm.acquire("acme")
        refused = caught.value
        assert (refused.why, refused.limit, refused.remaining, refused.retry_after) == (
            "the toy is used up",
            100,
            0,
            1.5,
        )
        explanation = await b.explain("llm", "acme")
        assert explanation.sentences == ("acme may use 100.", "It has 0 left.")
        assert (await count(b)) == {"held": 0, "spent": 100}


async def test_work_that_fails_pays_what_its_kind_says(b: Bursar) -> None:
    async with b:
        with pytest.raises(ZeroDivisionError):
            async with b.resource("llm").acquire("acme", 100):
                raise ZeroDivisionError
        async with b.resource("llm").acquire("acme", 100):
            pass


async def test_a_waiter_is_granted_when_another_releases(b: Bursar) -> None:
    async with b:
        llm = b.resource("llm")
        first = await llm.acquire("acme", 100)
        waiting = asyncio.ensure_future(_take(llm, wait=5))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        first.settle(0)
        await first.release()
        assert (await asyncio.wait_for(waiting, 2)).amount == 100


async def _take(resource: bursar.Resource, wait: float) -> bursar.Grant:
    return await resource.acquire("acme", 100, wait=wait)


async def test_the_same_key_twice_is_one_acquisition(b: Bursar) -> None:
    async with b:
        llm = b.resource("llm")
        await llm.acquire("acme", 60, key="request-1")
        await llm.acquire("acme", 60, key="request-1")
        assert (await count(b))["held"] == 60


async def test_misuse_is_said_with_a_remedy(b: Bursar) -> None:
    async with b:
        with pytest.raises(UsageError, match="did you mean"):
            b.resource("lm")
        with pytest.raises(UsageError):
            await b.resource("llm").acquire("", 1)
        with pytest.raises(Refused, match="did you mean"):
            await b.resource("llm").acquire("acmee")
        with pytest.raises(UsageError):
            await b.explain("llm", "nobody at all")
        with pytest.raises(UsageError, match="kind claim"):
            b.claim("vm-7:E", tenant="acme")
        with pytest.raises(UsageError, match="kind quota"):
            b.claim("vm-7:E", tenant="acme", resource="llm")


async def test_a_policy_file_and_a_policy_are_embedded_alike(make_policy: MakePolicy, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        f'[daemon]\nstate = "{tmp_path}/other"\n[resource.llm]\nkind = "quota"\n'
        "[resource.llm.tenant]\nacme = { limit = 1 }\n"
    )
    async with await bursar.connect(path) as b:
        assert await b.resource("llm").acquire("acme")
        with pytest.raises(Refused):
            await b.resource("llm").acquire("acme")
        assert b.fallbacks("llm") == {}


async def test_a_kind_that_is_not_there_is_named(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bursar.runtime import kinds

    monkeypatch.setitem(kinds.MODULES, "quota", "bursar.nowhere.resource")
    for _ in range(2):  # the second time shows that nothing was left open
        with pytest.raises(UsageError, match="llm: the kind 'quota' is not part of this version"):
            await bursar.connect(make_policy())
    monkeypatch.setitem(kinds.MODULES, "quota", f"{__package__}.needs_a_package")
    with pytest.raises(UsageError, match=r"needs the package not_installed_anywhere: pip install"):
        await bursar.connect(make_policy())


async def test_what_a_lost_client_held_counts_as_used_after_a_grace_time(
    make_policy: MakePolicy, serve_policy: Serve
) -> None:
    daemon = await serve_policy(make_policy())
    daemon.clients._grace_ns = 100 * MILLISECOND_NS
    b = await bursar.connect(url_of(daemon))
    await b.resource("llm").acquire("acme", 30)
    waiting = asyncio.ensure_future(_take(b.resource("llm"), wait=30))
    await until(lambda: toy_of(daemon).calls == 2)
    b._backend._world.network.crash()  # type: ignore[attr-defined]
    waiting.cancel()
    assert toy_of(daemon).held["acme"] == 30
    await until(lambda: toy_of(daemon).held["acme"] == 0)
    assert toy_of(daemon).spent["acme"] == 30
    assert daemon.clients.counts["lost"] == 1
    assert not daemon.clients._sessions


async def test_a_client_that_comes_back_in_time_keeps_what_it_holds(
    make_policy: MakePolicy, serve_policy: Serve
) -> None:
    daemon = await serve_policy(make_policy())
    async with await bursar.connect(url_of(daemon)) as b:
        grant = await b.resource("llm").acquire("acme", 30)
        for link in list(daemon.host.world.sockets._links):
            link.abort()
        grant.settle(7)
        await grant.release()
        await until(lambda: toy_of(daemon).spent.get("acme") == 7)
        assert toy_of(daemon).held["acme"] == 0


async def test_an_acquisition_survives_a_lost_connection_and_happens_once(
    make_policy: MakePolicy, serve_policy: Serve
) -> None:
    daemon = await serve_policy(make_policy())
    async with await bursar.connect(url_of(daemon)) as b:
        llm = b.resource("llm")
        first = await llm.acquire("acme", 100)
        waiting = asyncio.ensure_future(_take(llm, wait=10))
        await until(lambda: toy_of(daemon).calls == 2)
        for link in list(daemon.host.world.sockets._links):
            link.abort()
        await asyncio.sleep(0.1)
        first.settle(0)
        await first.release()
        assert (await asyncio.wait_for(waiting, 5)).amount == 100
        assert toy_of(daemon).calls == 2, "asked again, done once"
        assert toy_of(daemon).held["acme"] == 100


async def test_an_acquisition_that_was_given_up_is_undone(
    make_policy: MakePolicy, serve_policy: Serve
) -> None:
    daemon = await serve_policy(make_policy())
    async with await bursar.connect(url_of(daemon)) as b:
        llm = b.resource("llm")
        first = await llm.acquire("acme", 100)
        waiting = asyncio.ensure_future(_take(llm, wait=10))
        await until(lambda: toy_of(daemon).calls == 2)
        waiting.cancel()
        first.settle(0)
        await first.release()
        await until(lambda: toy_of(daemon).held["acme"] == 0)
        async with llm.acquire("acme", 100):
            pass


async def test_a_failing_kind_is_not_blamed_on_the_network(
    make_policy: MakePolicy, serve_policy: Serve
) -> None:
    broken = {"tenant": {"broken": {"limit": 5}}}
    daemon = await serve_policy(make_policy(broken))
    async with await bursar.connect(url_of(daemon)) as b:
        with pytest.raises(Unknown, match="internal error"):
            await b.resource("llm").acquire("broken")


@pytest.mark.parametrize("mode", ["keep", "refuse", "safe"])
async def test_without_a_daemon_the_policy_decides_and_nobody_stalls(
    make_policy: MakePolicy, serve_policy: Serve, mode: str
) -> None:
    daemon = await serve_policy(make_policy())
    # The quota kind, whose place the toy takes, allows only "refuse" in a file.
    terms = WithoutBursar(mode=mode, rate=Rate(10) if mode == "safe" else None)  # type: ignore[arg-type]
    door = daemon.host.resources["llm"]
    door.policy = msgspec.structs.replace(door.policy, without_bursar=terms)
    async with await bursar.connect(url_of(daemon)) as b:
        llm = b.resource("llm")
        for _ in range(7):
            await (await llm.acquire("acme")).release()
        await daemon.close()
        await asyncio.sleep(1.0)  # the period in which those seven were charged is over
        slowest_s, fallbacks, unknown = 0.0, 0, 0
        for _ in range(30):
            began = time.monotonic()
            try:
                async with llm.acquire("acme", wait=0.05) as grant:
                    assert grant.fallback == mode
                    fallbacks += 1
            except Unknown as error:
                assert error.fallback == mode
                assert "cannot be reached" in error.why
                unknown += 1
            slowest_s = max(slowest_s, time.monotonic() - began)
        assert slowest_s < 0.05 + 0.25 + 0.5
        if mode == "keep":
            assert 7 <= fallbacks <= 21, "as much as before in each second, and no more"
            assert unknown >= 1
        elif mode == "refuse":
            assert (fallbacks, unknown) == (0, 30)
        else:
            assert fallbacks >= 1
            assert unknown >= 1
        assert sum(b.fallbacks("llm").values()) == fallbacks


async def test_a_silent_daemon_is_one_that_is_away_also_when_the_door_is_first_to_give_up(
    make_policy: MakePolicy, serve_policy: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = await serve_policy(make_policy())
    door = daemon.host.resources["llm"]
    door.policy = msgspec.structs.replace(door.policy, without_bursar=WithoutBursar(mode="keep"))
    async with await bursar.connect(url_of(daemon)) as b:
        llm = b.resource("llm")
        await (await llm.acquire("acme")).release()

        async def never(self: Line, message: object, timeout_ns: int) -> object:
            return await asyncio.Event().wait()

        monkeypatch.setattr(Line, "call", never)
        monkeypatch.setattr(FarDecider, "patience_ns", lambda self, ticket: ticket.wait_ns + MILLISECOND_NS)
        async with asyncio.timeout(5):
            while True:  # the period in which it was charged is not over yet
                try:
                    async with llm.acquire("acme") as grant:
                        assert grant.fallback == "keep"
                        break
                except Unknown as error:
                    assert "did not answer in time" in error.why and error.fallback == "keep"


async def test_a_silent_kind_costs_the_wait_and_a_small_bound(make_policy: MakePolicy) -> None:
    async with await bursar.connect(make_policy()) as b:
        door = b.resource("llm")
        assert isinstance(door.decider, ToyDecider)
        door.decider.silent = True
        began = time.monotonic()
        with pytest.raises(Unknown, match="in time"):
            await door.acquire("acme", wait=0.1)
        assert 0.1 <= time.monotonic() - began < 1.0
        door.decider.silent = False
        door.decider.serve()
        assert (await count(b)) == {"held": 0, "spent": 0}, "what came too late was given back"


async def test_the_client_finds_the_daemon_again(make_policy: MakePolicy, serve_policy: Serve) -> None:
    daemon = await serve_policy(make_policy())
    url, at = url_of(daemon), str(daemon.host.world.listening)
    async with await bursar.connect(url) as b:
        llm = b.resource("llm")
        await (await llm.acquire("acme")).release()
        await daemon.close()
        with pytest.raises(Unknown):
            await llm.acquire("acme")
        again = await serve_policy(make_policy(listen=at))

        async def acquired() -> bool:
            try:
                await (await llm.acquire("acme")).release()
                return True
            except Unknown:
                return False

        async with asyncio.timeout(5):
            while not await acquired():
                await asyncio.sleep(0.02)
        assert toy_of(again).calls >= 1


async def test_a_daemon_with_a_token_serves_those_who_have_it(
    make_policy: MakePolicy, serve_policy: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("a very secret token\n")
    policy = make_policy(token_file=str(tmp_path / "token"))
    daemon = await serve_policy(policy)
    for wrong in (None, "", "wrong"):
        with pytest.raises(UsageError, match="BURSAR_TOKEN"):
            await bursar.connect(url_of(daemon), token=wrong)
    monkeypatch.setenv("BURSAR_TOKEN", "a very secret token")
    async with await bursar.connect(url_of(daemon)) as b:
        async with b.resource("llm").acquire("acme"):
            pass
        # A daemon that restarted does not know the session; the client opens it again by itself.
        daemon.clients._sessions.clear()
        async with b.resource("llm").acquire("acme"):
            pass
    (tmp_path / "token").write_text("short\n")
    await daemon.close()
    with pytest.raises(UsageError, match="at least 16"):
        await serve_policy(policy)


async def test_nobody_at_the_address_is_a_clear_error() -> None:
    with pytest.raises(UnreachableError, match=r"no daemon answers") as caught:
        await bursar.connect("bursar://127.0.0.1:1", timeout=1)
    assert str(caught.value) == (
        "no daemon answers at bursar://127.0.0.1:1: daemon 127.0.0.1:1: Connection refused; "
        "is `bursar serve` running?"
    )
    assert caught.value.__cause__ is None, "one sentence, not three tracebacks"
    with pytest.raises(UsageError, match="TLS"):
        await bursar.connect("bursar://192.0.2.1:7070")


def test_addresses_of_daemons() -> None:
    assert read_url("bursar://host") == [Address("host", 7070)]
    assert read_url("bursar://[::1]:5/") == [Address("::1", 5)]
    assert read_url("bursar://a,b:5") == [Address("a", 7070), Address("b", 5)]
    for wrong in ("http://host", "bursar://", "bursar://host:x", "bursar://host/path", "bursar://host:99999"):
        with pytest.raises(UsageError, match="write bursar://"):
            read_url(wrong)


def test_the_safe_rate_is_exact_over_time() -> None:
    rate, now, taken = Rate(7, 3 * SECOND_NS), 0, 0
    safe = SafeRate(rate, now)
    while now < 60 * SECOND_NS:
        taken += safe.take(now, 1)
        now += 13 * MILLISECOND_NS
    assert 7 * 20 <= taken <= 7 * 20 + 1
    assert not safe.take(now, 1000)


def test_the_synchronous_mirror(make_policy: MakePolicy) -> None:
    policy: Policy = make_policy()
    with bursar.sync.connect(policy) as b:
        llm = b.resource("llm")
        assert (llm.name, llm.kind, b.resources) == ("llm", "quota", ("llm",))
        with llm.acquire("acme", 40) as grant:
            assert (grant.amount, grant.tenant, grant.fallback, grant.closed) == (40, "acme", None, False)
            grant.settle(15)
        grant = llm.acquire("acme", 5).take()
        grant.release()
        assert grant.closed
        tried = llm.acquire("acme", 80).take()
        with pytest.raises(Refused), llm.acquire("acme", 1):
            pass
        with pytest.raises(ZeroDivisionError), tried:
            raise ZeroDivisionError
        assert b.explain("llm", "acme").figures["left"] == 80
        assert b.statistics("llm").part.tenants["acme"].spent == 20
    b.close()
    with pytest.raises(UsageError, match="closed"):
        b.explain("llm", "acme")


def test_the_synchronous_mirror_from_many_threads(make_policy: MakePolicy) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with bursar.sync.connect(make_policy()) as b:
        llm = b.resource("llm")

        def take(_: int) -> bool:
            try:
                with llm.acquire("acme"):
                    return True
            except Refused:
                return False

        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(take, range(200))) == 100


async def test_another_daemon_of_the_url_is_asked_when_one_is_away(
    make_policy: MakePolicy, serve_policy: Serve, tmp_path: Path
) -> None:
    first = await serve_policy(make_policy())
    second = await serve_policy(make_policy(state=str(tmp_path / "second"), name="second"))
    url = f"{url_of(first)},{second.host.world.listening}"
    async with await bursar.connect(url) as b:
        llm = b.resource("llm")
        held = await llm.acquire("acme")
        assert toy_of(first).calls == 1
        await first.close()
        async with llm.acquire("acme", wait=1):
            pass
        assert toy_of(second).calls == 1
        await held.release()


async def test_what_a_silent_daemon_may_have_granted_is_given_back_to_it(
    make_policy: MakePolicy, serve_policy: Serve, tmp_path: Path
) -> None:
    first = await serve_policy(make_policy())
    second = await serve_policy(make_policy(state=str(tmp_path / "second"), name="second"))
    async with await bursar.connect(f"{url_of(first)},{second.host.world.listening}") as b:
        answer = first.clients._answer

        async def grant_and_say_nothing(client: str, message: Any) -> Any:
            await answer(client, message)
            if isinstance(message, wire.Take):
                await asyncio.Event().wait()
            return wire.Done()

        first.host.world.network.serve(wire.TOPIC, wire.Requests, grant_and_say_nothing, anyone=True)
        with pytest.raises(Unknown):
            await b.resource("llm").acquire("acme", 30, wait=0.1)
        grant = await b.resource("llm").acquire("acme", 30, wait=0.1)
        assert toy_of(second).held["acme"] == 30, "the other daemon was asked"
        await until(lambda: toy_of(first).held["acme"] == 0)
        assert toy_of(first).spent.get("acme", 0) == 0
        await grant.release()
