"""Thirty changes to a running fleet's policy, good, harmful, impossible and wrong: each is shown beforehand
as what it does, and those that cannot be made change nothing."""

from __future__ import annotations

import pytest

from bursar.cli.plan import write_plan
from bursar.errors import PolicyError
from bursar.fleet import layout
from bursar.fleet.changes import ImpossibleChangeError, apply, propose
from bursar.fleet.documents import SCHEMA, read_document
from bursar.fleet.layout import NodeRecord
from bursar.world import Store

POLICY = """
[resource.cache]
kind = "rate"
period = "1s"
interval = "200ms"
pacing = true
servers = { a = "1k/s", b = "1k/s" }
[resource.cache.tenant]
acme = { reservation = "300/s", limit = "600/s" }
globex = { limit = "200/s" }

[resource.disk]
kind = "share"
capacity = "1GiB/s"
interval = "100ms"
[resource.disk.tenant]
sim = { weight = 3 }

[resource.records]
kind = "pool"
capacity = "10k/s"
period = "1s"
[resource.records.tenant]
acme = { reservation = "2k/s" }

[resource.llm]
kind = "quota"
window = "month"
mode = "exact"
[resource.llm.tenant]
acme = { limit = 5000 }

[resource.dc]
kind = "claim"
paths = false
dead_holder = "keep"
"""

POSSIBLE = [
    ('limit = "600/s"', 'limit = "700/s"', "~ resource.cache.tenant.acme.limit: 600/s -> 700/s"),
    ('limit = "600/s"', 'limit = "300/s"', "~ resource.cache.tenant.acme.limit: 600/s -> 300/s"),
    ('globex = { limit = "200/s" }\n', "", "- resource.cache.tenant.globex"),
    ("globex = {", 'zeta = { limit = "1/s" }\nglobex = {', "+ resource.cache.tenant.zeta"),
    ("globex = {", '"*" = { limit = "1/s" }\nglobex = {', '+ resource.cache.tenant."*"'),
    ('b = "1k/s" }', 'b = "2k/s" }', "~ resource.cache.servers.b.capacity: 1k/s -> 2k/s"),
    ('b = "1k/s" }', 'b = "1k/s", c = "1k/s" }', "+ resource.cache.servers.c"),
    (', b = "1k/s" }', " }", "- resource.cache.servers.b"),
    ('b = "1k/s" }', 'b = "1k/s", "*" = "1k/s" }', '~ resource.cache.servers."*": none ->'),
    ('interval = "200ms"', 'interval = "100ms"', "~ resource.cache.interval: 200ms -> 100ms"),
    ("pacing = true", "pacing = false", "~ resource.cache.pacing: true -> false"),
    ('"1GiB/s"', '"2GiB/s"', "~ resource.disk.capacity"),
    ('interval = "100ms"', 'interval = "50ms"', "~ resource.disk.interval: 100ms -> 50ms"),
    ("weight = 3", "weight = 4", "~ resource.disk.tenant.sim.weight: 3 -> 4"),
    ('capacity = "10k/s"', 'capacity = "20k/s"', "~ resource.records.capacity: 10k/s -> 20k/s"),
    ("limit = 5000", "limit = 6000", "~ resource.llm.tenant.acme.limit: 5,000 -> 6,000"),
    ('mode = "exact"', 'mode = "fast"', "~ resource.llm.mode: exact -> fast"),
    ('dead_holder = "keep"', 'dead_holder = "fail"', "~ resource.dc.dead_holder: keep -> fail"),
    ('[resource.dc]\nkind = "claim"', '[resource.yard]\nkind = "claim"', "- resource.dc = claim"),
]
HARMFUL = [
    ('reservation = "300/s", limit = "600/s"', 'reservation = "2500/s"', "acme reserves 2,500/s"),
    ('reservation = "2k/s"', 'reservation = "20k/s"', "acme reserves 20,000/s"),
    ('a = "1k/s", b = "1k/s"', 'a = "100/s", b = "100/s"', "acme reserves 300/s"),
]
IMPOSSIBLE = [
    (
        '[resource.cache]\nkind = "rate"\nperiod = "1s"',
        '[resource.cache]\nkind = "rate"\nperiod = "2s"',
        "twice",
    ),
    ('capacity = "10k/s"\nperiod = "1s"', 'capacity = "10k/s"\nperiod = "2s"', "beyond their end"),
    ('window = "month"', 'window = "day"', "counts for the window it was used in"),
    ("paths = false", "paths = true", "would not exclude each other"),
    ('kind = "claim"\npaths = false\ndead_holder = "keep"', 'kind = "quota"', "keeps its kind"),
]
WRONG = [
    ('limit = "600/s"', 'limit = "100/s"', "below the reservation"),
    ("weight = 3", "weight = 0", "weight"),
    ('window = "month"', 'window = "fortnight"', "window"),
]


def test_there_are_thirty() -> None:
    assert len(POSSIBLE) + len(HARMFUL) + len(IMPOSSIBLE) + len(WRONG) == 30


@pytest.fixture
async def fleet(store: Store) -> Store:
    """A store with the policy in force, and a node that runs."""
    await apply(store, POLICY, by="ann", at_ns=0)
    record = NodeRecord(name="a", incarnation=1, schema=SCHEMA)
    await store.create(layout.node_path("a"), layout.write(record), ephemeral=True)
    return store


def change(before: str, after: str) -> str:
    assert before in POLICY
    return POLICY.replace(before, after, 1)


@pytest.mark.parametrize(("before", "after", "shown"), POSSIBLE)
async def test_a_good_one_is_shown_and_made(fleet: Store, before: str, after: str, shown: str) -> None:
    text = change(before, after)
    proposal = await propose(fleet, text)
    assert proposal.possible
    assert any(str(each).startswith(shown) for each in proposal.changes), list(map(str, proposal.changes))
    await apply(fleet, text, by="ann", at_ns=0)
    document = await read_document(fleet)
    assert document is not None and document.version.number == 2


@pytest.mark.parametrize(("before", "after", "planned"), HARMFUL)
async def test_a_harmful_one_is_shown_as_what_it_does(
    fleet: Store, before: str, after: str, planned: str
) -> None:
    proposal = await propose(fleet, change(before, after))
    assert proposal.possible
    assert planned in write_plan(proposal.policy)


@pytest.mark.parametrize(("before", "after", "why"), IMPOSSIBLE)
async def test_an_impossible_one_changes_nothing(fleet: Store, before: str, after: str, why: str) -> None:
    text = change(before, after)
    assert not (await propose(fleet, text)).possible
    with pytest.raises(ImpossibleChangeError, match=why):
        await apply(fleet, text, by="ann", at_ns=0)
    await _is_untouched(fleet)


@pytest.mark.parametrize(("before", "after", "why"), WRONG)
async def test_a_wrong_one_changes_nothing(fleet: Store, before: str, after: str, why: str) -> None:
    with pytest.raises(PolicyError, match=why):
        await apply(fleet, change(before, after), by="ann", at_ns=0)
    await _is_untouched(fleet)


async def _is_untouched(fleet: Store) -> None:
    document = await read_document(fleet)
    assert document is not None and (document.version.number, document.text) == (1, POLICY)
