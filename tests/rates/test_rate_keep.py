"""A rate whose controllers are gone: `without_bursar`, through the front door."""

from __future__ import annotations

import pytest
from virtual import Callers, open_rate, run

from bursar.errors import BursarError, Unknown
from bursar.rates.resource import RateDecider
from bursar.world import SECOND_NS, World

POLICY = """
[resource.api]
kind = "rate"
pacing = {pacing}
without_bursar = {without}
servers = {{ a = "4000/s", b = "4000/s" }}
[resource.api.tenant]
acme = {{ limit = "400/s" }}
free = {{}}
"""


def stop_controllers(rate: RateDecider) -> None:
    """As if the node that leads stood still, and no other were in sight."""
    rate.book.deposed()


async def use_then_lose(world: World, without: str, pacing: str = "true") -> tuple[Callers, int]:
    """30 of 400 are used in the last period that there is; the callers that then want all there is, and
    how many of them were charged to that period."""
    door, rate = await open_rate(world, POLICY.format(without=without, pacing=pacing))
    await world.clock.sleep(rate.servers["a"].ends_at - world.clock.now() + SECOND_NS // 5)
    stop_controllers(rate)
    for _ in range(30):
        async with door.acquire("acme", wait=1):
            await world.clock.sleep(SECOND_NS // 200)
    door.hand.end_all()
    charged = sum(server.used(0) for server in rate.servers.values())
    await world.clock.sleep(max(server.ends_at for server in rate.servers.values()) - world.clock.now())
    callers = Callers(world, door, "acme", wait=30.0)
    callers.start(50)
    return callers, charged


@pytest.mark.parametrize("pacing", ["true", "false"])
def test_keep_is_what_was_charged_in_the_last_period_again_in_each(pacing: str) -> None:
    async def body(world: World) -> None:
        callers, charged = await use_then_lose(world, '"keep"', pacing)
        assert charged == 30
        await world.clock.sleep(5 * SECOND_NS)
        assert set(callers.periods) == {0}, "charged to no period"
        assert 3 * 30 <= callers.periods[0] <= 5 * 30, "from one period after the end to five after it"
        found = await callers.door.statistics()
        assert found.ready and all(server.alone for server in found.part.servers.values())
        assert (
            found.tenants["acme"].fallback == found.part.tenants["acme"].charged_alone == callers.periods[0]
        )
        said = (await callers.door.explain("acme")).sentences
        assert any("goes on by itself (without_bursar = keep)" in sentence for sentence in said)

    run(body, seconds=12)


def test_safe_is_that_rate_at_each_server_and_never_above_the_limit() -> None:
    async def body(world: World) -> None:
        callers, _ = await use_then_lose(world, '{ safe = "1k/s" }')
        await world.clock.sleep(4 * SECOND_NS)
        assert 2 * 2 * 400 <= callers.periods[0] <= 2 * 4 * 400

    run(body, seconds=12)


def test_refuse_is_to_say_that_nothing_is_known() -> None:
    async def body(world: World) -> None:
        callers, _ = await use_then_lose(world, '"refuse"')
        await world.clock.sleep(3 * SECOND_NS)
        assert not callers.periods and not (await callers.door.statistics()).ready
        with pytest.raises(Unknown, match="no controller has granted tokens"):
            await callers.door.acquire("acme")

    run(body, seconds=12)


def test_a_controller_that_comes_back_is_obeyed_from_its_next_period_on() -> None:
    async def body(world: World) -> None:
        door, rate = await open_rate(world, POLICY.format(without='"keep"', pacing="true"))
        stop_controllers(rate)
        async with door.acquire("acme", wait=1) as grant:
            last = grant.period
        await world.clock.sleep(3 * SECOND_NS)
        async with door.acquire("acme") as grant:
            assert (grant.period, grant.fallback) == (0, "keep")
        rate._controller.perform(rate.book.lead(rate.book.state))
        for _ in range(200):
            await world.clock.sleep(SECOND_NS // 50)
            try:
                async with door.acquire("acme") as grant:
                    if grant.period:
                        break
            except BursarError:
                continue
        assert grant.period > last and grant.fallback is None

    run(body, seconds=12)
