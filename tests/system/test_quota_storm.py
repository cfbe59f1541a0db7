"""Bad input to a daemon's budget, past the client's own checks: clear answers, and it adds up."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

from bursar.resource import wire
from bursar.runtime.network import SocketNetwork
from bursar.world import SECOND_NS, Message

from .processes import Process

LIMIT = 2_000
AMOUNT = 5
POLICY = """[daemon]
listen = "127.0.0.1:0"
http = "off"
state = "{folder}/state"
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = {{ limit = {limit} }}
"""


class Client:
    """Says whatever it is told to, under numbers of its own."""

    def __init__(self, address: str) -> None:
        self._network = SocketNetwork("storm/1", 1, peers={"bursar": address})
        self._number = 0

    async def say(self, message: Message) -> Any:
        return await self._network.call("bursar", wire.TOPIC, message, wire.Replies, 5 * SECOND_NS)

    async def take(self, amount: int, tenant: str = "acme", key: str | None = None) -> Any:
        self._number += 1
        return await self.say(wire.Take(self._number, "llm", tenant, amount, SECOND_NS, key))

    async def settle(self, id: str, used: int | None) -> bool:
        """Whether the daemon found it right."""
        answer = await self.say(wire.Settle("llm", id, used))
        assert isinstance(answer, wire.Done | wire.Misused), answer
        return isinstance(answer, wire.Done)

    async def close(self) -> None:
        await self._network.close()


async def storm(address: str) -> None:
    client = Client(address)
    try:
        await client.say(wire.Open())
        for amount in (0, -1, -(2**62), 2**63, 2**64 - 1):
            answer = await client.take(amount)
            assert isinstance(answer, wire.Misused) and "2^63" in answer.why, (amount, answer)
        for tenant in ("", "a\nb", "x" * 300):
            assert isinstance(await client.take(1, tenant), wire.Misused), tenant
        for tenant in ("nobody", "acme/search"):
            assert isinstance(await client.take(1, tenant), wire.Refusal), tenant
        for key in ("", "k" * 300, "a\x00b"):
            assert isinstance(await client.take(1, key=key), wire.Misused), key
        for id in ("", "bursar/1", "bursar/x", "nobody/1", "bursar/" + "9" * 200):
            assert not await client.settle(id, 1), id
        assert isinstance(await client.take(2**63 - 1), wire.Refusal)
        used, unpaid = await spend(client, random.Random(7))
        whole = await survey(client)
        assert (whole["spent"], whole["held"]) == (used, 0), whole
        assert (whole["unspent"], whole["missing"]) == (LIMIT - used, 0), whole
        assert whole["unpaid"] == unpaid > 0, whole
    finally:
        await client.close()


async def spend(client: Client, rng: random.Random) -> tuple[int, int]:
    """Keys used again and again, settled twice, too high, below zero, never. What was charged in the
    end, and what was unpaid."""
    open_: dict[str, str] = {}
    said: dict[str, int] = {}
    for _ in range(300):
        key = f"k{rng.randrange(100)}"
        answer = await client.take(AMOUNT, key=key)
        assert isinstance(answer, wire.Given), answer
        assert (answer.replayed, answer.used) == (key in open_ or key in said, said.get(key))
        # Far above the limit is a mistake, and not counted; above the hold is used, and unpaid.
        says = rng.choice((None, 0, 3, AMOUNT, AMOUNT + 1, 2**62, -7, -(2**62)))
        means = AMOUNT if says is None else says
        right = await client.settle(answer.id, says)
        if key in said:
            assert right == (means == (min(said[key], AMOUNT) if says is None else said[key]) <= AMOUNT)
        elif means < 0:
            assert not right
            open_[key] = answer.id
        else:
            assert right == (means <= AMOUNT)
            open_.pop(key, None)
            if means:
                said[key] = means if means <= LIMIT else AMOUNT
        assert isinstance(await client.say(wire.GiveBack(((10**6, 4), (10**7, -4)))), wire.Done)
    for id in open_.values():
        assert await client.settle(id, 1)
    used = sum(min(used, AMOUNT) for used in said.values()) + len(open_)
    return used, sum(max(0, used - AMOUNT) for used in said.values())


async def survey(client: Client) -> Any:
    """The audit."""
    async with asyncio.timeout(20):
        while True:
            answer = await client.say(wire.Do("llm", "survey", {}))
            assert isinstance(answer, wire.Done)
            (row,) = answer.value["rows"]
            if not row["held"]:
                return row
            await asyncio.sleep(0.1)


def test_a_storm_of_bad_input_gets_clear_answers_and_the_ledger_adds_up(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(folder=tmp_path, limit=LIMIT))
    with Process([sys.executable, "-m", "bursar", "serve", str(policy), "--log", "json"]) as daemon:
        asyncio.run(storm(daemon.wait_for("daemon.ready")["address"]))
