"""Tokens in the store: what they prove, what is kept of them, and when rights are on."""

from __future__ import annotations

import msgspec
import pytest

from bursar.errors import DeniedError, UsageError
from bursar.fleet import audit, tokens
from bursar.fleet.layout import TOKENS
from bursar.fleet.rights import EVERYTHING, VERBS, Scope, matches
from bursar.fleet.tokens import check_join, create_token, make_administrator, revoke_all, revoke_token
from bursar.world import Store

READER = Scope(tenants=("acme/*",), resources=("llm",), verbs=("read",))


@pytest.mark.parametrize(
    ("pattern", "covered", "others"),
    [
        ("acme", ["acme"], ["acme/search", "acme2", "acm", "*", "ACME", ""]),
        (
            "acme/*",
            ["acme/search", "acme/search/eu", "acme/*"],
            ["acme", "acme/", "acmes/x", "x/acme/y", "*"],
        ),
        ("*", ["acme", "acme/search", "*", "a*"], []),
        ("acme/search", ["acme/search"], ["acme", "acme/search/eu", "acme/*"]),
    ],
)
def test_a_pattern_covers_a_name_what_is_below_it_or_everything(
    pattern: str, covered: list[str], others: list[str]
) -> None:
    assert [name for name in covered + others if matches(pattern, name)] == covered


def test_no_verb_contains_another_and_joining_has_no_resources() -> None:
    for verb in VERBS:
        scope = Scope(verbs=(verb,))
        assert [each for each in VERBS if scope.allows(each, "llm", "acme")] == [verb]
    assert Scope(verbs=("join",), resources=("llm",), tenants=("acme",)).allows("join", "*", "*")


async def read_all(store: Store, path: str = "/") -> bytes:
    """Everything that is in the store, paths and data."""
    found = b""
    for name in await store.children(path):
        below = f"{path.rstrip('/')}/{name}"
        data, _ = await store.get(below)
        found += below.encode() + data + await read_all(store, below)
    return found


async def test_only_a_hash_of_a_token_is_in_the_store(store: Store) -> None:
    token, text = await create_token(store, [READER], by="me", at_ns=5, note="search team")
    secret = text.rpartition(f"{token.id}_")[2]
    assert len(secret) == 43, "256 bits"
    kept = await read_all(store)
    assert token.id.encode() in kept and secret.encode() not in kept
    (found,) = await tokens.list_tokens(store)
    assert (found.note, found.by, found.scopes) == ("search team", "me", (READER,))
    assert tokens.proves(text, found.digest)
    assert not any(
        tokens.proves(wrong, found.digest) for wrong in (text[:-1], text + "x", token.id, secret, "")
    )
    endless = "x" * (tokens.TEXT_MAX + 1)
    assert not tokens.proves(endless, tokens.digest(endless)), "hashing has a bound"
    assert not tokens.proves(text, ""), "a record of a certificate is proved by no text"


async def test_the_first_token_turns_rights_on_and_revoking_the_last_does_not_open_the_door(
    store: Store,
) -> None:
    assert not await tokens.is_required(store)
    _, text = await create_token(store, [READER], by="me", at_ns=5)
    assert await tokens.is_required(store)
    await revoke_token(store, text, by="me", at_ns=6)
    assert await tokens.list_tokens(store) == []
    assert await tokens.is_required(store), "whoever had stolen it would be let in"
    await create_token(store, [READER], by="me", at_ns=7)
    assert await revoke_all(store, by="me", at_ns=8) == 1
    assert not await tokens.is_required(store)


async def test_the_administrators_token_is_made_once(store: Store) -> None:
    text = await make_administrator(store, "me", 5)
    assert text is not None
    (found,) = await tokens.list_tokens(store)
    assert tokens.proves(text, found.digest) and found.scopes == (EVERYTHING,)
    assert await make_administrator(store, "me", 6) is None
    await revoke_token(store, found.id, by="me", at_ns=7)
    assert await make_administrator(store, "me", 8) is None, "rights were given out before"


async def test_a_certificate_has_one_record(store: Store) -> None:
    token, text = await create_token(store, [READER], by="me", at_ns=5, certificate="gateway")
    assert text == "" and token.name == "certificate gateway"
    with pytest.raises(UsageError, match=f"revoke {token.id}"):
        await create_token(store, [EVERYTHING], by="me", at_ns=6, certificate="gateway")
    await revoke_token(store, token.id, by="me", at_ns=7)
    await create_token(store, [EVERYTHING], by="me", at_ns=8, certificate="gateway")


@pytest.mark.parametrize(
    "scope",
    [
        Scope(tenants=("ac*",)),
        Scope(tenants=("*/search",)),
        Scope(tenants=("",)),
        Scope(tenants=("/*",)),
        Scope(tenants=()),
        Scope(resources=("llm/*",)),
        Scope(resources=("l*",)),
        Scope(verbs=()),
    ],
)
async def test_patterns_that_mean_nothing_are_refused(store: Store, scope: Scope) -> None:
    with pytest.raises(UsageError):
        await create_token(store, [scope], by="me", at_ns=5)
    assert not await tokens.is_required(store)


async def test_a_token_is_revoked_by_itself_or_its_id_and_only_once(store: Store) -> None:
    token, _ = await create_token(store, [READER], by="me", at_ns=5)
    await revoke_token(store, token.id, by="me", at_ns=6)
    for unknown in (token.id, "bursar_feed_x", "../policy", "", "x" * 10_000):
        with pytest.raises(UsageError, match="token list"):
            await revoke_token(store, unknown, by="me", at_ns=7)


async def test_joining_takes_the_verb_and_only_where_rights_are(store: Store) -> None:
    assert await check_join(store, None, "e", at_ns=5) == "local"
    _, reader = await create_token(store, [READER], by="me", at_ns=5)
    joiner = Scope(verbs=("join",))
    token, text = await create_token(store, [joiner], by="me", at_ns=5, expires_ns=100)
    await create_token(store, [joiner], by="me", at_ns=5, certificate="node-e")
    assert await check_join(store, text, "e", at_ns=6) == f"token {token.id}"
    assert await check_join(store, None, "e", at_ns=6, certificate=("e", "node-e")) == "certificate node-e"
    for wrong in (None, "", "bursar_x_y", text + "x", text[:-1], token.id):
        with pytest.raises(DeniedError, match="shows no token"):
            await check_join(store, wrong, "e", at_ns=6)
    with pytest.raises(DeniedError, match="--verb join"):
        await check_join(store, reader, "e", at_ns=6)
    with pytest.raises(DeniedError):
        await check_join(store, text, "e", at_ns=100)


async def test_making_and_revoking_stand_in_the_audit_with_who_and_when(store: Store) -> None:
    token, _ = await create_token(store, [READER], by="cli ann@desk", at_ns=5, note="search")
    await revoke_token(store, token.id, by="cli bob@desk", at_ns=6)
    await revoke_all(store, by="cli bob@desk", at_ns=7)
    lines = [(e.by, e.at_ns, e.what, e.name, e.detail) for e in await audit.list_entries(store)]
    made = "created: read for tenant acme/* of resource llm"
    assert lines == [
        ("cli ann@desk", 5, "token", f"token {token.id} (search)", made),
        ("cli bob@desk", 6, "token", f"token {token.id} (search)", "revoked"),
        ("cli bob@desk", 7, "token", "all", "0 revoked, rights are off"),
    ]


async def test_a_record_that_this_build_cannot_read_gives_no_rights(store: Store) -> None:
    token, _ = await create_token(store, [READER], by="me", at_ns=5)
    data, _ = await store.get(tokens.token_path(token.id))
    newer = msgspec.json.decode(data)
    newer["scopes"][0]["verbs"] = ["fly"]
    await store.set(tokens.token_path(token.id), msgspec.json.encode(newer))
    assert await tokens.list_tokens(store) == []
    assert await tokens.is_required(store)
    assert await store.children(TOKENS) == [token.id]
