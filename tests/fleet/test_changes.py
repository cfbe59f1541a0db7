"""What a new policy would change is said beforehand; what cannot be done changes nothing."""

from __future__ import annotations

import pytest
from texts import BOTH, CACHE, LLM

from bursar.errors import PolicyError
from bursar.fleet import changes, layout, tenants
from bursar.fleet.changes import ImpossibleChangeError, apply, propose, rollback
from bursar.fleet.documents import SCHEMA, read_document
from bursar.fleet.layout import NodeRecord
from bursar.world import Store


async def be_up(store: Store, name: str = "a", schema: int = SCHEMA) -> None:
    """As a node that runs says of itself."""
    await layout.prepare(store)
    record = NodeRecord(name=name, incarnation=1, schema=schema, build="0.0.9")
    await store.create(layout.node_path(name), layout.write(record), ephemeral=True)


async def show(store: Store, text: str) -> list[str]:
    return [str(change) for change in (await propose(store, text)).changes]


async def test_the_first_policy_is_all_new(store: Store) -> None:
    proposal = await propose(store, BOTH)
    assert [str(change) for change in proposal.changes] == [
        "+ resource.cache = rate, 1 tenant",
        "+ resource.llm = quota, 2 tenants",
    ]
    assert proposal.possible and proposal.expected == 0


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ('limit = "400/s"', 'limit = "500/s"', "~ resource.cache.tenant.acme.limit: 400/s -> 500/s"),
        ('reservation = "100/s", ', "", "~ resource.cache.tenant.acme.reservation: 100/s -> 0/s"),
        (', limit = "400/s"', "", "~ resource.cache.tenant.acme.limit: 400/s -> none"),
        ("limit = 500 ", "limit = 501 ", '~ resource.llm.tenant."acme/search".limit: 500 -> 501'),
        (
            '"acme/search" = { limit = 500 }\n',
            "",
            '- resource.llm.tenant."acme/search" = { limit = 500, parent = acme, overdraft = 0 }',
        ),
        (
            '"acme/search" =',
            "joe = { limit = 7 }\n'acme/search' =",
            "+ resource.llm.tenant.joe = { limit = 7, overdraft = 0 }",
        ),
        (
            'kind = "rate"',
            'kind = "rate"\nwithout_bursar = "refuse"',
            "~ resource.cache.without_bursar: { mode = keep } -> { mode = refuse }",
        ),
        ('kind = "rate"', 'kind = "rate"\nshadow = true', "~ resource.cache.shadow: false -> true"),
        (
            'kind = "quota"',
            'kind = "quota"\nwarnings = [50]',
            "~ resource.llm.warnings: [80, 95, 100] -> [50]",
        ),
    ],
)
async def test_a_change_is_shown_as_what_it_does(store: Store, before: str, after: str, shown: str) -> None:
    await apply(store, BOTH, by="ann", at_ns=0)
    await be_up(store)
    assert before in BOTH
    changed = BOTH.replace(before, after)
    assert await show(store, changed) == [shown]
    await apply(store, changed, by="ann", at_ns=0)
    assert await show(store, changed) == []


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('kind = "rate"', 'kind = "rate"\nperiod = "2s"', "resource.cache.period: 1s -> 2s"),
        ('kind = "quota"', 'kind = "quota"\nwindow = "day"', "resource.llm.window: none -> day"),
        (LLM, LLM.replace("quota", "claim").replace("limit = 1000", "").replace("limit = 500", ""), "kind"),
    ],
)
async def test_what_cannot_change_while_nodes_run_changes_nothing(
    store: Store, before: str, after: str, why: str
) -> None:
    await apply(store, BOTH, by="ann", at_ns=0)
    await be_up(store)
    changed = BOTH.replace(before, after)
    proposal = await propose(store, changed)
    assert not proposal.possible
    with pytest.raises(ImpossibleChangeError, match=why):
        await apply(store, changed, by="ann", at_ns=0)
    document = await read_document(store)
    assert document is not None and document.text == BOTH


async def test_with_no_node_up_everything_can_change(store: Store) -> None:
    await apply(store, BOTH, by="ann", at_ns=0)
    changed = BOTH.replace('kind = "rate"', 'kind = "rate"\nperiod = "2s"')
    assert (await apply(store, changed, by="ann", at_ns=0)).number == 2
    document = await read_document(store)
    assert document is not None and document.text == changed


async def test_a_text_that_is_wrong_changes_nothing(store: Store) -> None:
    await apply(store, BOTH, by="ann", at_ns=0)
    with pytest.raises(PolicyError, match=r"resource\.cache\.tenant\.acme\.limit"):
        await apply(store, BOTH.replace('"400/s"', '"fast"'), by="ann", at_ns=0)
    assert len(await store.children(layout.VERSIONS)) == 1


async def test_a_policy_that_a_running_node_could_not_read_is_refused(store: Store) -> None:
    await be_up(store, "old", schema=SCHEMA - 1)
    with pytest.raises(ImpossibleChangeError, match=r"node old runs bursar 0\.0\.9"):
        await apply(store, BOTH, by="ann", at_ns=0)


async def test_a_tenant_is_in_the_text_or_was_set_not_both(store: Store) -> None:
    await apply(store, BOTH, by="ann", at_ns=0)
    await tenants.set_tenants(store, "cache", {"joe": {"limit": "5/s"}}, by="ann", at_ns=0)
    both = BOTH.replace("acme = { res", 'joe = { limit = "6/s" }\nacme = { res')
    with pytest.raises(ImpossibleChangeError, match="joe of cache was set by `bursar tenant set`"):
        await apply(store, both, by="ann", at_ns=0)
    with pytest.raises(ImpossibleChangeError, match="cache has 1 tenants that were set"):
        await apply(store, LLM, by="ann", at_ns=0)


async def test_tenants_that_were_set_must_go_with_the_new_text(store: Store) -> None:
    await apply(store, BOTH, by="ann", at_ns=0)
    await tenants.set_tenants(store, "llm", {"acme/search/eu": {"limit": 5}}, by="ann", at_ns=0)
    without = BOTH.replace('"acme/search" = { limit = 500 }\n', "")
    with pytest.raises(ImpossibleChangeError, match='nested below "acme/search"'):
        await apply(store, without, by="ann", at_ns=0)


async def test_going_back_is_a_new_version_with_the_old_text(store: Store) -> None:
    await apply(store, CACHE, by="ann", at_ns=0)
    await apply(store, BOTH, by="ann", at_ns=0)
    version = await rollback(store, 1, by="bob", at_ns=0)
    document = await read_document(store)
    assert document is not None and document.text == CACHE
    assert (version.number, version.note, version.by) == (3, "back to version 1", "bob")


def test_every_field_of_a_kind_is_live_or_has_its_reason() -> None:
    from bursar.policy import values
    from bursar.policy.live import LIVE, WHY_NOT

    for policy in (
        values.RatePolicy,
        values.SharePolicy,
        values.PoolPolicy,
        values.QuotaPolicy,
        values.ClaimPolicy,
    ):
        fields = set(policy.__struct_fields__) - {"name"}
        known = set(LIVE[policy.kind]) | {field for kind, field in WHY_NOT if kind == policy.kind}
        assert fields == known, policy.kind
    assert changes.FILE_KEYS
