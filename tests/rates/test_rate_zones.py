"""Zones: a controller for each, and one above them. What they promise, and what that rests on."""

from __future__ import annotations

import pytest
from zone_bugs import ZONE_BUGS, plant_zones

from bursar.errors import PolicyError
from bursar.policy import parse
from bursar.rates.messages import NO_PART, UNBOUNDED, Part, State
from bursar.rates.parts import count_part
from bursar.rates.standing import Standing
from bursar.rates.terms import LiftedTerms, PolicyTerms, Terms
from bursar.rates.zoning import make_standing
from bursar.sim.errors import RunFailedError
from bursar.sim.scenarios import run_seed
from bursar.sim.scenarios.rate_zones import ZonesRateScenario
from bursar.sim.simulation import Simulation

SEEDS = 4
SEEDS_TO_FIND = 5
FIRST_TO_FIND = {"knows nothing and says so": 82, "counts one period": 32, "opens unasked": 7}
"""Where few seeds find it, the search begins at one that does."""

TEXT = """
[resource.cache]
kind = "rate"
[resource.cache.servers]
a = { capacity = "1k/s", zone = "eu" }
b = { capacity = "1k/s", zone = "us" }
c = { capacity = "1k/s", zone = "eu" }
[resource.cache.tenant]
acme = { limit = "100/s", servers = ["a", "b", "c"] }
bound = { limit = "100/s", servers = ["c", "b"] }
local = { limit = "100/s", servers = ["a"] }
free = { reservation = "10/s" }
plain = { limit = "101/s" }
"""


def read(text: str = TEXT) -> PolicyTerms:
    return PolicyTerms(parse(text).resource("cache"))  # type: ignore[arg-type]


def test_no_tenant_passes_its_limit_over_all_zones_under_every_fault() -> None:
    for seed in range(SEEDS):
        run_seed("rate_zones", seed, keep=100)


def test_in_these_runs_zones_go_on_alone() -> None:
    """Else they would prove nothing."""
    scenario = ZonesRateScenario()
    Simulation("rate_zones", scenario, 7, keep=10).run()
    assert scenario.zones_alone > 5 and scenario.served_alone > 50


@pytest.mark.parametrize("bug", ZONE_BUGS)
def test_what_zones_rest_on_taken_out_is_found_by_seeds(bug: str) -> None:
    first = FIRST_TO_FIND.get(bug, 0)
    for seed in range(first, first + SEEDS_TO_FIND):
        try:
            Simulation("rate_zones", plant_zones(bug), seed, keep=50).run()
        except RunFailedError as failure:
            assert "limit" in failure.why
            return
    pytest.fail(f"{SEEDS_TO_FIND} seeds did not find {bug}")


@pytest.mark.parametrize("tenant", ["acme", "bound", "local", "free", "plain"])
def test_parts_of_parts_add_up_to_a_zones_part_and_those_to_the_limit(tenant: str) -> None:
    terms = read()
    lifted = LiftedTerms(terms)
    zones = {"eu": (Part(0, 2), ["a", "c"]), "us": (Part(1, 2), ["b"])}
    whole = 0
    for number, (zone, (part, servers)) in enumerate(zones.items()):
        has = count_part(tenant, lifted[tenant], zone, part)
        parts = [
            count_part(tenant, terms[tenant], server, Part(place, len(servers), number, 2))
            for place, server in enumerate(servers)
        ]
        if tenant == "free":
            assert has == UNBOUNDED and set(parts) == {UNBOUNDED}
        else:
            assert sum(parts) == has
        whole += has
    limit = terms[tenant].limit
    assert limit is None or whole == limit


def test_a_zone_has_the_same_part_of_several_periods_whoever_else_is_up() -> None:
    standing: Standing = make_standing(("eu", "us"))
    eu, us = ("eu", 4), ("us", 9)
    standing.open(State(1, "c", 5, (eu, us), "", (eu, us)), inherited=False)
    standing.sent(us, 1, standing.find_part(us))
    standing.open(State(1, "c", 6, (us,), "", (us,)), inherited=False)
    assert standing.find_given(7) == {us: Part(1, 2)}
    standing.succeed(us, 6)
    assert not standing.find_given(7), "whoever goes on for it knows that it has begun no more"


def test_a_tenant_of_some_servers_is_bound_to_their_zones() -> None:
    lifted = LiftedTerms(read())
    assert lifted["local"].servers == ("eu",) and lifted["bound"].servers == ("eu", "us")
    assert lifted["plain"] == Terms(0, 101, burst=10)
    assert count_part("local", lifted["local"], "us", Part(1, 2)) == 0
    assert count_part("plain", lifted["plain"], "us", NO_PART) == 0


@pytest.mark.parametrize(
    ("servers", "place"),
    [
        ('a = { zone = "eu" }\nb = "1k/s"', "servers.b"),
        ('a = { zone = "eu" }\n"*" = "1k/s"', "servers.*"),
        ('a = { zone = "e u" }', "servers.a.zone"),
    ],
)
def test_each_server_has_a_zone_or_none_has(servers: str, place: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(
            f'[resource.cache]\nkind = "rate"\n[resource.cache.servers]\n{servers}\n[resource.cache.tenant]\n'
        )
    assert place.replace(".*", '."*"') in str(caught.value) or place in str(caught.value)
