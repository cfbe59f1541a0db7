"""Rows of statistics: made when they are read, a few at a time, and frozen for whoever asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

import msgspec

from bursar.resource.rows import PORTION, Rows, freeze, freeze_at_once
from bursar.resource.statistics import counter, labelled


class Row(msgspec.Struct, frozen=True):
    used: Annotated[int, counter("used")]


class Server(msgspec.Struct, frozen=True):
    tenants: Annotated[Mapping[str, Row], labelled("tenant")]


class Part(msgspec.Struct, frozen=True):
    servers: Annotated[Mapping[str, Server], labelled("server")]
    name: str = "a"


def make_part(read: list[str], names: list[str]) -> Part:
    def make(name: str) -> Row:
        read.append(name)
        if name == "gone":
            raise KeyError(name)
        return Row(len(read))

    return Part({"x": Server(Rows(names, make)), "y": Server({"acme": Row(7)})})


def test_no_row_is_made_before_it_is_read() -> None:
    read: list[str] = []
    part = make_part(read, ["acme", "globex"])
    assert not read and len(part.servers["x"].tenants) == 2
    assert part.servers["x"].tenants["globex"] == Row(1)
    assert "globex" in part.servers["x"].tenants and "nobody" not in part.servers["x"].tenants


async def test_a_frozen_part_has_every_row_however_deep_and_stays_as_it_is() -> None:
    read: list[str] = []
    part = make_part(read, ["acme", "gone", "globex"])
    for frozen in (freeze_at_once(part), await freeze(part)):
        assert isinstance(frozen, Part) and frozen.name == "a"
        assert set(frozen.servers["x"].tenants) == {"acme", "globex"}, "one went away meanwhile"
        assert frozen.servers["y"].tenants == {"acme": Row(7)}
        before = len(read)
        assert frozen.servers["x"].tenants["acme"] == frozen.servers["x"].tenants["acme"]
        assert len(read) == before
    assert msgspec.json.decode(msgspec.json.encode(frozen), type=Part).name == "a"


async def test_others_have_their_turn_while_many_rows_are_made() -> None:
    """As many turns as there are portions: nobody waits for all of them."""
    names = [f"tenant-{number}" for number in range(20 * PORTION)]
    turns = 0
    done = False

    async def take_turns() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(take_turns())
    frozen = await freeze(Part({"x": Server(Rows(names, lambda name: Row(1)))}))
    done = True
    await other
    assert len(frozen.servers["x"].tenants) == len(names)
    assert turns >= 18
