"""How soon a controller may ask its servers out of turn again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from virtual import Callers, open_rate, run

from bursar.rates.controller import ControllerBook
from bursar.rates.haste import MOST, Haste
from bursar.rates.messages import Poll, Wanted
from bursar.rates.server import ServerBook
from bursar.world import MILLISECOND_NS as MS
from bursar.world import SECOND_NS, Message, World


def make(taken_ns: int) -> Haste:
    """After many rounds that took so long each."""
    haste = Haste()
    for number in range(100):
        haste.talk(number * SECOND_NS)
        haste.hear(number * SECOND_NS + taken_ns // 2)
        haste.hear(number * SECOND_NS + taken_ns)
    haste.talk(100 * SECOND_NS)
    return haste


def test_rounds_out_of_turn_take_no_more_than_their_part_of_the_time() -> None:
    pause_ns = make(3 * MS).find_pause(3, SECOND_NS)
    assert 0.95 * 3 * 3 * MS <= MOST * pause_ns <= 3 * 3 * MS


def test_however_long_rounds_take_there_are_some_in_each_period() -> None:
    assert make(300 * MS).find_pause(3, SECOND_NS) == SECOND_NS


def test_what_nobody_answers_takes_no_time() -> None:
    haste = make(3 * MS)
    for number in range(101, 200):
        haste.talk(number * SECOND_NS)
    assert haste.find_pause(3, SECOND_NS) < MS


def test_a_server_says_once_that_demand_has_moved_until_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[type] = []
    hear, answer = ControllerBook.receive, ServerBook.receive

    def listen(book: ControllerBook, now: int, sender: str, message: Message) -> Any:
        said.extend([Wanted] if isinstance(message, Wanted) else [])
        return hear(book, now, sender, message)

    def be_asked(book: ServerBook, now: int, sender: str, message: Message) -> Any:
        said.extend([Poll] if isinstance(message, Poll) else [])
        return answer(book, now, sender, message)

    async def body(world: World) -> None:
        names = [f"t{number}" for number in range(50)]
        listed = "\n".join(f'{name} = {{ limit = "1/s" }}' for name in names)
        policy = f'[resource.api]\nkind = "rate"\nservers = {{ a = "1k/s" }}\n[resource.api.tenant]\n{listed}'
        door, _ = await open_rate(world, policy)
        await world.clock.sleep(SECOND_NS)
        said.clear()
        for name in names:
            Callers(world, door, name).start(2)
        await world.clock.sleep(2 * SECOND_NS)

    monkeypatch.setattr(ControllerBook, "receive", listen)
    monkeypatch.setattr(ServerBook, "receive", be_asked)
    run(body)
    assert Wanted in said
    assert (Wanted, Wanted) not in set(pairwise(said))
