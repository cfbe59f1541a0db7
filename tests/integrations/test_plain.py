"""The decorator and the block for plain code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from asgi_budget import Budget, make_door

import bursar
from bursar.errors import Refused, UsageError
from bursar.integrations.plain import limited
from bursar.policy import parse
from bursar.resource.grants import Grant

POLICY = """
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = {{ limit = 10 }}
[daemon]
http = "off"
state = "{state}"
"""


async def test_the_decorator_guards_async_functions_and_generators() -> None:
    budget = Budget(10)
    door = make_door(budget)

    @limited(door, lambda who, **_: who, amount=4)
    async def work(who: str, *, grant: Grant) -> str:
        assert budget.left == 6
        grant.settle(1)
        return grant.tenant

    assert await work("acme") == "acme"  # type: ignore[call-arg]
    assert budget.left == 9

    @limited(door, "acme", 5)
    async def count() -> AsyncIterator[int]:
        for number in range(3):
            assert budget.left == 4
            yield number

    assert [number async for number in count()] == [0, 1, 2]
    async with limited(door, "acme", 2) as grant:
        assert budget.left == 2
        grant.settle(0)
    assert budget.left == 4
    with pytest.raises(Refused):
        async with limited(door, "acme", 5):
            pass


def test_the_decorator_guards_plain_functions_and_generators(tmp_path: Path) -> None:
    with bursar.sync.connect(parse(POLICY.format(state=tmp_path / "state"))) as held:
        llm = held.resource("llm")

        @limited(llm, "acme", wait=10.0)
        def work(number: int) -> int:
            return number * 2

        @limited(llm, "acme", wait=10.0)
        def count() -> Iterator[int]:
            yield from range(3)

        assert work(4) == 8
        assert list(count()) == [0, 1, 2]
        with limited(llm, "acme", 8, wait=10.0):
            pass
        with pytest.raises(Refused), limited(llm, "acme"):
            pass


async def test_the_wrong_world_or_a_second_entering_is_a_clear_error() -> None:
    door = make_door(Budget(10))
    with pytest.raises(UsageError, match=r"needs a resource of bursar\.sync\.connect"):

        @limited(door, "acme")
        def work() -> None: ...

    with pytest.raises(UsageError, match="other world"), limited(door, "acme"):
        pass
    block = limited(door, "acme")
    async with block:
        with pytest.raises(UsageError, match="entered already"):
            async with block:
                pass
