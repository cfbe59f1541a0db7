"""Tenants that come by first use, and go when they are idle: in virtual time."""

from __future__ import annotations

import pytest
from virtual import open_rate, read, run

from bursar.errors import Refused, UsageError
from bursar.rates.messages import UNBOUNDED, Part
from bursar.rates.parts import count_part
from bursar.rates.resource import RateDecider
from bursar.rates.terms import PolicyTerms, Terms
from bursar.world import SECOND_NS, World

POLICY = """
[resource.api]
kind = "rate"
{options}
servers = {{ a = "100k/s", b = "100k/s" }}
[resource.api.tenant]
acme = {{ limit = "400/s" }}
"*" = {{ limit = "{limit}/s" }}
"acme/*" = {{ limit = "7/s" }}
"""


def make_policy(options: str = "", limit: int = 10) -> str:
    return POLICY.format(options=options, limit=limit)


async def skip_period(world: World, rate: RateDecider, periods: int = 1) -> None:
    """Until every server has tokens of a later period."""
    wanted = [server.book.period + periods for server in rate.servers.values()]
    while any(s.book.period < period for s, period in zip(rate.servers.values(), wanted, strict=True)):
        await world.clock.sleep(SECOND_NS // 1000)


def test_parts_of_a_limit_add_up_to_it_whatever_it_is() -> None:
    for of in range(1, 8):
        for limit in range(20):
            for tenant in ("a", "b", "acme/search", "ü"):
                parts = [count_part(tenant, Terms(0, limit), "s", Part(place, of)) for place in range(of)]
                assert sum(parts) == limit
                assert max(parts) - min(parts) <= 1


def test_who_is_bound_to_servers_has_its_parts_there() -> None:
    terms = Terms(0, 7, servers=("x", "z"))
    parts = {server: count_part("a", terms, server, Part(k, 3)) for k, server in enumerate("xyz")}
    assert parts["y"] == 0 and sum(parts.values()) == 7
    assert count_part("a", Terms(0, None), "x", Part(0, 3)) == UNBOUNDED
    assert count_part("a", None, "x", Part(0, 3)) == count_part("a", Terms(0, 5), "x", Part(0, 0)) == 0


def test_terms_are_named_by_what_they_promise() -> None:
    one, same, other = (read(make_policy(limit=limit)) for limit in (10, 10, 11))
    assert PolicyTerms(one).digest == PolicyTerms(same).digest != PolicyTerms(other).digest
    assert PolicyTerms(one)["anybody"].limit == 10
    assert PolicyTerms(one)["acme/search"].limit == 7
    assert list(PolicyTerms(one)) == ["acme"], "templates are no tenants"


def test_whoever_a_template_covers_is_granted_its_limit_and_no_more() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy("pacing = false"))
        await skip_period(world, rate)
        granted = [await door.acquire("joe") for _ in range(10)]
        assert len({grant.period for grant in granted}) == 1
        with pytest.raises(Refused, match="joe has used its 10 tokens"):
            await door.acquire("joe")
        assert (await door.acquire("acme/search", 7, wait=1)).limit == 7
        with pytest.raises(Refused, match="never gets more than 7"):
            await door.acquire("acme/search", 8)
        found = await door.explain("joe")
        assert found.figures["limit"] == 10

    run(body)


def test_a_thousand_tenants_by_first_use_are_forgotten_when_they_are_idle() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy())
        for number in range(1_000):
            await door.acquire(f"user-{number}", wait=1)
        assert len(list(filter(None, rate._promises.tenants))) == 1_000
        assert len(door.tallies()) == 1_001
        await skip_period(world, rate, 3)
        assert list(filter(None, rate._promises.tenants)) == []
        assert list(door.tallies()) == ["acme", "*"], "all of them in one sum"
        for number in range(500):
            await door.acquire(f"other-{number}", wait=1)
        assert len(rate._promises.tenants) == 1_000, "their numbers went to others"
        assert all(len(server.book.tenants) == 1_000 for server in rate.servers.values())
        part = (await door.statistics()).part
        assert part.tenants["other-1"].dispatched >= 1
        assert part.tenants["acme"].dispatched == 0

    run(body, seconds=20)


def test_nobody_is_forgotten_before_its_period_is_over() -> None:
    """Its limit would begin anew."""

    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy('period = "2s"\ninterval = "100ms"\npacing = false'))
        await skip_period(world, rate)
        first = await door.acquire("joe", 20, wait=1)
        for _ in range(15):
            await world.clock.sleep(SECOND_NS // 10)
            with pytest.raises(Refused, match="has used its 20 tokens"):
                await door.acquire("joe")
            await door.acquire("ann", wait=1)
        await skip_period(world, rate)
        assert (await door.acquire("joe", 20, wait=1)).period == first.period + 1

    run(body, seconds=20)


def test_as_many_tenants_as_the_policy_allows_have_a_place_at_once() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy("max_tenants = 3"))
        for name in ("ann", "bob"):  # and acme, who is listed
            await door.acquire(name, wait=1)
        with pytest.raises(Refused, match=r"as many tenants as it may have, 3.* max_tenants") as refused:
            await door.acquire("dan", wait=1)
        assert refused.value.reason == "tenant"
        await door.acquire("acme", wait=1)  # who is listed always has one
        await skip_period(world, rate, 3)
        await door.acquire("dan", wait=1)

    run(body, seconds=20)


def test_what_was_counted_of_a_listed_tenant_outlasts_its_idleness() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, make_policy())
        for _ in range(3):
            await door.acquire("acme", wait=1)
        charged = (await door.statistics()).part.tenants["acme"].charged
        await skip_period(world, rate, 3)
        assert rate._promises.index("acme") is None
        assert (await door.statistics()).part.tenants["acme"].charged >= 3
        await door.acquire("acme", wait=1)
        assert (await door.statistics()).part.tenants["acme"].charged > min(charged, 3)

    run(body)


def test_who_is_known_to_nobody_is_refused_by_name() -> None:
    async def body(world: World) -> None:
        door, _ = await open_rate(world, make_policy().replace('"*" =', '"else/*" ='))
        with pytest.raises(Refused, match='no tenant "joe"'):
            await door.acquire("joe")
        with pytest.raises(UsageError, match="joe"):
            await door.explain("joe")

    run(body)
