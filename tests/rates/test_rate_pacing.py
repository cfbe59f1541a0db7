"""Pacing, which is on by default: it costs nothing of the limit, and no window shows much more."""

from __future__ import annotations

import pytest
from virtual import Callers, open_rate, run

from bursar.errors import Refused
from bursar.rates.resource import open_server
from bursar.world import SECOND_NS, World

POLICY = """
[resource.api]
kind = "rate"
{options}
servers = {{ {servers} }}
[resource.api.tenant]
acme = {{ {terms} }}
"""


def make_policy(terms: str, servers: str = 'a = "2000/s"', options: str = "") -> str:
    return POLICY.format(terms=terms, servers=servers, options=options)


FOUR = 'a = "2000/s", b = "2000/s", c = "2000/s", d = "2000/s"'


@pytest.mark.parametrize("callers", [1, 40])
@pytest.mark.parametrize("servers", ['a = "2000/s"', FOUR], ids=["one", "four"])
@pytest.mark.parametrize("interval", ["", "100ms", "500ms", "auto"])
def test_those_who_wait_get_the_whole_limit_and_no_window_much_more(
    interval: str, servers: str, callers: int
) -> None:
    """On an idle server of 2,000 a second."""
    options = f'interval = "{interval}"' if interval else ""

    async def body(world: World) -> None:
        door, _ = await open_rate(world, make_policy('limit = "400/s"', servers, options))
        acme = Callers(world, door, "acme")
        acme.start(callers)
        await world.clock.sleep(8 * SECOND_NS)
        assert min(acme.full_periods()[1:]) >= 0.99 * 400
        assert max(acme.periods.values()) <= 400
        assert acme.busiest(SECOND_NS) <= 400 + 20, "the limit and a burst"

    run(body)


def test_the_reserved_part_is_paced_too_and_met() -> None:
    """Late in one period and early in the next it would be 110 in a second."""

    async def body(world: World) -> None:
        policy = make_policy('reservation = "50/s", limit = "60/s"')
        door, rate = await open_rate(world, policy)
        acme = Callers(world, door, "acme")
        await world.clock.sleep(rate.servers["a"].ends_at - world.clock.now() - SECOND_NS // 20)
        acme.start(80)
        await world.clock.sleep(5 * SECOND_NS)
        assert acme.busiest(SECOND_NS) <= 60 + 10 + 1
        assert min(acme.full_periods()) >= 59

    run(body)


def test_a_reservation_on_a_busy_server_is_met_though_it_is_paced() -> None:
    """Beside somebody who takes whatever there is; its pace leaves it no time to lose."""

    async def body(world: World) -> None:
        policy = make_policy('reservation = "300/s", limit = "310/s"', 'a = "400/s"') + "greedy = {}\n"
        door, _ = await open_rate(world, policy)
        acme, greedy = Callers(world, door, "acme"), Callers(world, door, "greedy")
        greedy.start(40)
        acme.start(4)
        await world.clock.sleep(8 * SECOND_NS)
        assert min(acme.full_periods()[1:]) >= 0.99 * 300
        assert min(greedy.full_periods()[1:]) >= 70

    run(body)


def test_five_a_minute_is_five_at_once_and_then_one_every_twelve_seconds() -> None:
    async def body(world: World) -> None:
        options = 'period = "1min"\ninterval = "1s"'
        door, rate = await open_rate(world, make_policy('limit = "5/min"', options=options))
        await world.clock.sleep(rate.servers["a"].ends_at - world.clock.now() - SECOND_NS)
        await door.acquire("acme")  # the first of a long period waits for the disk
        assert [door.try_acquire("acme") is not None for _ in range(5)] == [True] * 4 + [False]
        began = world.clock.now()
        acme = Callers(world, door, "acme", wait=60.0)
        acme.start(3)
        await world.clock.sleep(62 * SECOND_NS)
        assert [round((at - began) / SECOND_NS) for at in acme.times] == [12, 24, 36, 48, 60]

    run(body, seconds=200)


def test_five_that_were_used_at_once_come_one_by_one_in_the_next_minute_to_those_who_waited() -> None:
    async def body(world: World) -> None:
        options = 'period = "1min"\ninterval = "1s"'
        door, rate = await open_rate(world, make_policy('limit = "5/min"', options=options))
        await door.acquire("acme")  # the first of a long period waits for the disk
        assert [door.try_acquire("acme") is not None for _ in range(5)] == [True] * 4 + [False]
        opens_at = rate.servers["a"].ends_at
        acme = Callers(world, door, "acme", wait=120.0)
        acme.start(3)
        await world.clock.sleep(opens_at + 121 * SECOND_NS - world.clock.now())
        assert [round((at - opens_at) / SECOND_NS) for at in acme.times[:10]] == list(range(0, 120, 12))

    run(body, seconds=300)


def test_a_burst_of_the_policy_is_what_goes_at_once() -> None:
    async def body(world: World) -> None:
        door, _ = await open_rate(world, make_policy('limit = "100/s", burst = 30'))
        granted = [door.try_acquire("acme") is not None for _ in range(50)]
        assert granted == [True] * 30 + [False] * 20

    run(body)


@pytest.mark.parametrize("interval", ["100ms", "200ms", "500ms", "auto"])
def test_a_tenant_that_turns_to_another_server_gets_its_limit_there(interval: str) -> None:
    """Each second, among four; the tokens follow at once, and the pace with them."""

    async def body(world: World) -> None:
        policy = make_policy('limit = "400/s"', FOUR, f'interval = "{interval}"')
        door, _ = await open_rate(world, policy)
        acme = Callers(world, door, "acme")
        doors = [await open_server(door, name) for name in "abcd"]
        acme.door = doors[0]
        acme.start(40)
        await world.clock.sleep(SECOND_NS // 2)
        for moves in range(1, 9):
            acme.door = doors[moves % 4]
            await world.clock.sleep(SECOND_NS)
        assert min(acme.full_periods()[1:]) >= 0.97 * 400
        assert acme.busiest(SECOND_NS) <= 400 + 20

    run(body)


@pytest.mark.parametrize("interval", ["200ms", "500ms"])
def test_whoever_has_used_its_limit_is_told_when_there_is_more(interval: str) -> None:
    async def body(world: World) -> None:
        options = f'pacing = false\ninterval = "{interval}"'
        door, rate = await open_rate(world, make_policy('limit = "400/s"', options=options))
        for part in (0, 3, 7):
            server = rate.servers["a"]
            while (index := server.book.index("acme")) is not None and server.unused(index) < 400:
                await world.clock.sleep(SECOND_NS // 100)
            await world.clock.sleep(part * SECOND_NS // 10)
            async with door.acquire("acme", 400) as grant:
                assert grant.remaining == 0
            with pytest.raises(Refused, match="acme has used its 400 tokens for this period") as refused:
                await door.acquire("acme")
            assert (refused.value.limit, refused.value.remaining) == (400, 0)
            assert abs(grant.reset_after - refused.value.retry_after) < 0.1
            await world.clock.sleep(int(refused.value.retry_after * SECOND_NS))
            async with door.acquire("acme", 1) as later:
                assert later.period == grant.period + 1

    run(body)
