"""The noun and the verb: in this process, and at a daemon; and when the daemon is away."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

import bursar
from bursar.errors import Refused, Unknown, UnreachableError, UsageError
from bursar.policy import Policy, WithoutBursar
from bursar.runtime.client import Bursar, read_url
from bursar.runtime.daemon import Daemon
from bursar.runtime.fallback import SafeRate
from bursar.runtime.routes import Address
from bursar.units import Rate
from bursar.world import MILLISECOND_NS, SECOND_NS

from .conftest import MakePolicy, Serve, url_of
from .toy import ToyResource


def toy_of(daemon: Daemon) -> ToyResource:
    resource = daemon.host.resources["llm"]
    assert isinstance(resource, ToyResource)
    return resource


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
        assert (await b.statistics("llm"))["tenants"]["acme"] == {"held": 0, "spent": 100}


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
        assert (await b.statistics("llm"))["tenants"]["acme"]["held"] == 60


async def test_misuse_is_said_with_a_remedy(b: Bursar) -> None:
    async with b:
        with pytest.raises(UsageError, match="did you mean"):
            b.resource("lm")
        with pytest.raises(UsageError):
            b.resource("llm").acquire("", 1)
        with pytest.raises(UsageError, match="did you mean"):
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
        assert b.resource("llm").try_acquire("acme")
        assert b.resource("llm").try_acquire("acme") is None
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


async def test_a_remote_resource_tries_from_tokens_fetched_ahead(
    make_policy: MakePolicy, serve_policy: Serve
) -> None:
    daemon = await serve_policy(make_policy())
    async with await bursar.connect(url_of(daemon)) as b:
        llm = b.resource("llm")
        assert llm.try_acquire("acme") is None, "nothing was fetched yet"
        await until(lambda: llm.try_acquire("acme", 2) is not None)
        assert toy_of(daemon).held["acme"] == 10, "charged before it is used"
        got = 2
        while llm.try_acquire("acme"):
            got += 1
        assert got == 10
        await until(lambda: toy_of(daemon).spent.get("acme", 0) == 10)
    await until(lambda: toy_of(daemon).held["acme"] == 0)
    assert toy_of(daemon).spent["acme"] == 10, "what was fetched and not used came back"


async def test_tokens_fetched_ahead_are_returned_when_their_time_is_over(
    make_policy: MakePolicy, serve_policy: Serve
) -> None:
    daemon = await serve_policy(make_policy())
    async with await bursar.connect(url_of(daemon)) as b:
        llm = b.resource("llm")
        await until(lambda: llm.try_acquire("acme", 3) is not None)
        await until(lambda: toy_of(daemon).spent.get("acme", 0) == 3)
        assert toy_of(daemon).held["acme"] == 0


async def test_what_a_lost_client_held_counts_as_used_after_a_grace_time(
    make_policy: MakePolicy, serve_policy: Serve
) -> None:
    daemon = await serve_policy(make_policy())
    daemon.desk._grace_ns = 100 * MILLISECOND_NS
    b = await bursar.connect(url_of(daemon))
    await b.resource("llm").acquire("acme", 30)
    waiting = asyncio.ensure_future(_take(b.resource("llm"), wait=30))
    await until(lambda: toy_of(daemon).calls == 2)
    b._backend.network.crash()  # type: ignore[attr-defined]
    waiting.cancel()
    await asyncio.sleep(0.02)
    assert toy_of(daemon).held["acme"] == 30
    await until(lambda: toy_of(daemon).held["acme"] == 0)
    assert toy_of(daemon).spent["acme"] == 30
    assert daemon.desk.counts["lost"] == 1
    assert not daemon.desk._sessions


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
    broken = {"tenant": {"broken": {"limit": 5}}, "without_bursar": "refuse"}
    daemon = await serve_policy(make_policy(broken))
    async with await bursar.connect(url_of(daemon)) as b:
        with pytest.raises(Unknown, match="internal error"):
            await b.resource("llm").acquire("broken")


@pytest.mark.parametrize("mode", ["keep", "refuse", "safe"])
async def test_without_a_daemon_the_policy_decides_and_nobody_stalls(
    make_policy: MakePolicy, serve_policy: Serve, mode: str
) -> None:
    daemon = await serve_policy(make_policy({"without_bursar": "keep" if mode == "safe" else mode}))
    if mode == "safe":  # which the quota kind, whose place the toy takes, does not allow in a file
        safe = WithoutBursar(mode="safe", rate=Rate(10))
        policies = daemon.host.policies
        policies["llm"] = msgspec.structs.replace(policies["llm"], without_bursar=safe)
    async with await bursar.connect(url_of(daemon)) as b:
        llm = b.resource("llm")
        await (await llm.acquire("acme")).release()
        await daemon.close()
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
            assert (fallbacks, unknown) == (30, 0)
        elif mode == "refuse":
            assert (fallbacks, unknown) == (0, 30)
        else:
            assert fallbacks >= 1
            assert unknown >= 1
        assert sum(b.fallbacks("llm").values()) == 30


async def test_a_silent_daemon_costs_the_wait_and_a_small_bound(
    make_policy: MakePolicy, serve_policy: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = await serve_policy(make_policy({"without_bursar": "keep"}))

    async def never(*args: object) -> bursar.Grant:
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    monkeypatch.setattr(toy_of(daemon), "_take", never)
    async with await bursar.connect(url_of(daemon)) as b:
        began = time.monotonic()
        grant = await b.resource("llm").acquire("acme", wait=0.1)
        assert grant.fallback == "keep"
        assert 0.1 <= time.monotonic() - began < 1.0


async def test_the_client_finds_the_daemon_again(make_policy: MakePolicy, serve_policy: Serve) -> None:
    daemon = await serve_policy(make_policy({"without_bursar": "refuse"}))
    url, at = url_of(daemon), str(daemon.host.world.listening)
    async with await bursar.connect(url) as b:
        llm = b.resource("llm")
        await (await llm.acquire("acme")).release()
        await daemon.close()
        with pytest.raises(Unknown):
            await llm.acquire("acme")
        again = await serve_policy(make_policy({"without_bursar": "refuse"}, listen=at))

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
        daemon.desk._sessions.clear()
        async with b.resource("llm").acquire("acme"):
            pass
    (tmp_path / "token").write_text("short\n")
    await daemon.close()
    with pytest.raises(UsageError, match="at least 16"):
        await serve_policy(policy)


async def test_nobody_at_the_address_is_a_clear_error() -> None:
    with pytest.raises(UnreachableError, match=r"no daemon answers at bursar://127.0.0.1:1: .*bursar serve"):
        await bursar.connect("bursar://127.0.0.1:1", timeout=1)
    with pytest.raises(UsageError, match="TLS"):
        await bursar.connect("bursar://192.0.2.1:7070")


def test_addresses_of_daemons() -> None:
    assert read_url("bursar://host") == Address("host", 7070)
    assert read_url("bursar://[::1]:5/") == Address("::1", 5)
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
        tried = llm.try_acquire("acme", 80)
        assert tried is not None
        assert llm.try_acquire("acme", 80) is None
        with pytest.raises(Refused), llm.acquire("acme", 1):
            pass
        with pytest.raises(ZeroDivisionError), tried:
            raise ZeroDivisionError
        assert b.explain("llm", "acme").figures["left"] == 80
        assert b.statistics("llm")["tenants"]["acme"]["spent"] == 20
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
