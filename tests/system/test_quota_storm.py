"""Bad input to a daemon's budget, past the client's own checks: clear answers, and it adds up."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

from bursar.runtime.messages import (
    TOPIC,
    Counted,
    GiveBack,
    Granted,
    Misused,
    Open,
    Refusal,
    Replies,
    Returned,
    Statistics,
    Take,
)

from bursar.runtime.network import SocketNetwork
from bursar.world import SECOND_NS, Message

from .processes import Process

LIMIT = 2_000
AMOUNT = 5
POLICY = """[daemon]
listen = "127.0.0.1:0"
state = "{folder}/state"
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = {{ limit = {limit} }}
"""


class Client:
    """Says whatever it is told to, under numbers of its own."""

    def __init__(self, address: str) -> None:
        self._network = SocketNetwork("storm", 1, peers={"bursar": address})
        self._number = 0

    async def say(self, message: Message) -> Any:
        return await self._network.call("bursar", TOPIC, message, Replies, 5 * SECOND_NS)

    async def take(self, amount: int, tenant: str = "acme", key: str | None = None) -> tuple[int, Any]:
        self._number += 1
        return self._number, await self.say(Take(self._number, "llm", tenant, amount, SECOND_NS, key))

    async def close(self) -> None:
        await self._network.close()


async def storm(address: str) -> None:
    client = Client(address)
    try:
        await client.say(Open())
        for amount in (0, -1, -(2**62), 2**63, 2**64 - 1):
            _, answer = await client.take(amount)
            assert isinstance(answer, Misused) and "2^63" in answer.why, (amount, answer)
        for tenant in ("nobody", "acme/search", "", "a\nb", "x" * 300):
            assert isinstance((await client.take(1, tenant))[1], Misused), tenant
        for key in ("", "k" * 300, "a\x00b"):
            assert isinstance((await client.take(1, key=key))[1], Misused), key
        assert isinstance((await client.take(2**63 - 1))[1], Refusal)
        used = await spend(client, random.Random(7))
        whole = await survey(client)
        assert (whole["spent"], whole["held"]) == (used, 0), whole
        assert (whole["unspent"], whole["missing"]) == (LIMIT - used, 0), whole
    finally:
        await client.close()


async def spend(client: Client, rng: random.Random) -> int:
    """Keys used again and again, settled twice, too high, below zero, with others, never taken.
    Returns what was used: what cannot be is charged in full."""
    used: dict[str, int] = {}
    for _ in range(300):
        key = f"k{rng.randrange(100)}"
        number, answer = await client.take(AMOUNT, key=key)
        other, _ = await client.take(1, key=f"other-{key}")
        assert isinstance(answer, Granted), answer
        says = rng.choice((0, 3, AMOUNT, AMOUNT + 1, 2**62, 2**63, -7))
        answer = await client.say(GiveBack(((number, says), (number, 1), (other, None), (number + 10**6, 4))))
        if key not in used:
            assert isinstance(answer, Returned if 0 <= says <= AMOUNT else Misused), (says, answer)
            used[key] = says if 0 <= says <= AMOUNT else AMOUNT
    return sum(used.values()) + len(used)


async def survey(client: Client) -> Any:
    """The audit, by a survey that began after all that was said before."""
    answer = await client.say(Statistics("llm"))
    wanted = answer.statistics["surveys"] + 2
    async with asyncio.timeout(20):
        while answer.statistics["surveys"] < wanted or answer.statistics["whole"]["acme"]["held"]:
            await asyncio.sleep(0.1)
            answer = await client.say(Statistics("llm"))
            assert isinstance(answer, Counted)
    return answer.statistics["whole"]["acme"]


def test_a_storm_of_bad_input_gets_clear_answers_and_the_ledger_adds_up(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.format(folder=tmp_path, limit=LIMIT))
    with Process([sys.executable, "-m", "bursar", "serve", str(policy), "--log", "json"]) as daemon:
        asyncio.run(storm(daemon.wait_for("daemon.ready")["address"]))
