"""Who asks, as a node knows it: by token, by certificate, by the token in its file, or nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from bursar.errors import DeniedError
from bursar.fleet.layout import TOKENS
from bursar.fleet.register import Register
from bursar.fleet.rights import EVERYTHING, Caller, Scope
from bursar.fleet.tokens import create_token, revoke_all, revoke_token
from bursar.runtime.world import LiveWorld, open_world

ACME = Scope(resources=("llm",), tenants=("acme",), verbs=("acquire",))
FILE = "a secret of 16 characters"


@pytest.fixture
async def world() -> AsyncIterator[LiveWorld]:
    opened = await open_world("node")
    yield opened
    await opened.close()


async def open_register(world: LiveWorld, token: str | None = None) -> Register:
    register = Register(world, token)
    await register.open()
    register.start()
    return register


async def make(world: LiveWorld, *scopes: Scope, certificate: str = "", lasts_ns: int = 0) -> tuple[str, str]:
    now = world.clock.wall()
    expires_ns = now + lasts_ns if lasts_ns else 0
    token, text = await create_token(
        world.store, scopes, by="me", at_ns=now, certificate=certificate, expires_ns=expires_ns
    )
    return token.id, text


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


def is_denied(register: Register, token: str | None = None, certificate: tuple[str, ...] = ()) -> bool:
    try:
        register.identify(token, certificate)
    except DeniedError:
        return True
    return False


def may(caller: Caller) -> tuple[bool, ...]:
    return (
        caller.may("acquire", "llm", "acme"),
        caller.may("read", "llm", "acme"),
        caller.may("acquire", "llm", "globex"),
        caller.may("acquire", "llm"),
        caller.may("acquire", "other", "acme"),
    )


async def test_without_rights_everybody_may_do_everything_until_there_is_a_token(world: LiveWorld) -> None:
    register = await open_register(world)
    before = register.identify(None)
    assert before.valid and all(may(before)) and before.name == "local"
    _, text = await make(world, ACME)
    await until(lambda: not register.is_open)
    assert not before.valid and not any(may(before)), "who came before is asked too"
    with pytest.raises(DeniedError, match="wants a token"):
        before.check("read")
    assert is_denied(register)
    caller = register.identify(text)
    assert may(caller) == (True, False, False, False, False)
    assert caller.may_some("acquire", "llm") and not caller.may_some("read", "llm")


async def test_revoking_takes_the_right_away_from_who_has_come_already(world: LiveWorld) -> None:
    id, text = await make(world, ACME)
    register = await open_register(world)
    told: list[bool] = []
    caller = register.identify(text)
    register.follow(lambda: told.append(caller.valid))
    await revoke_token(world.store, id, by="me", at_ns=world.clock.wall())
    await until(lambda: bool(told))
    assert told == [False] and not any(may(caller)) and is_denied(register, text)
    with pytest.raises(DeniedError, match="revoked"):
        caller.check("acquire", "llm", "acme")
    await revoke_all(world.store, by="me", at_ns=world.clock.wall())
    await until(lambda: register.is_open)
    assert all(may(register.identify(None)))


async def test_wrong_tokens_are_denied_whatever_they_look_like(world: LiveWorld) -> None:
    id, text = await make(world, ACME)
    register = await open_register(world)
    other, _ = await make(world, EVERYTHING)
    await until(lambda: other in register.tokens)
    swapped = text.replace(id, other)
    for wrong in (
        None,
        "",
        "bursar_",
        f"bursar_{id}",
        f"bursar_{id}_",
        id,
        swapped,
        text + "\0",
        "\udcff",
        "x" * 10**6,
    ):
        assert is_denied(register, wrong), wrong
    assert not is_denied(register, text)


async def test_an_expired_token_is_worth_nothing_from_that_moment_on(world: LiveWorld) -> None:
    _, text = await make(world, ACME, lasts_ns=300_000_000)
    register = await open_register(world)
    caller = register.identify(text)
    told: list[bool] = []
    register.follow(lambda: told.append(caller.valid))
    await until(lambda: not caller.valid)
    assert not any(may(caller)) and is_denied(register, text)
    await until(lambda: bool(told))
    assert told == [False]


async def test_a_certificate_has_the_rights_of_the_record_that_names_it(world: LiveWorld) -> None:
    await make(world, ACME, certificate="gateway")
    register = await open_register(world)
    caller = register.identify(None, ("web", "gateway"))
    assert may(caller) == (True, False, False, False, False)
    assert caller.name == "certificate gateway"
    assert is_denied(register, None, ("web",)) and is_denied(register, None)
    assert is_denied(register, "bursar_wrong_token", ("gateway",)), "a wrong token is not passed over"


async def test_the_token_in_the_file_may_do_everything_beside_those_in_the_store(world: LiveWorld) -> None:
    register = await open_register(world, FILE)
    assert is_denied(register) and is_denied(register, FILE + "x")
    caller = register.identify(FILE)
    assert all(may(caller)) and caller.name == "token file"
    id, text = await make(world, ACME)
    await until(lambda: id in register.tokens)
    assert may(register.identify(text)) == (True, False, False, False, False)
    await revoke_all(world.store, by="me", at_ns=world.clock.wall())
    await until(lambda: not register.tokens)
    assert is_denied(register) and caller.valid


async def test_a_record_that_cannot_be_read_closes_the_door_and_opens_none(world: LiveWorld) -> None:
    await world.store.ensure(TOKENS)
    await world.store.create(f"{TOKENS}/abc", b'{"scopes": 7}')
    register = await open_register(world)
    assert not register.is_open and not register.tokens and is_denied(register)


async def test_it_goes_on_following_in_a_new_session(world: LiveWorld) -> None:
    register = await open_register(world)
    await until(lambda: register.is_open)
    await world.store.renew()
    id, _ = await make(world, ACME)
    await until(lambda: id in register.tokens)
    await world.store.renew()
    await revoke_token(world.store, id, by="me", at_ns=world.clock.wall())
    await until(lambda: id not in register.tokens)
