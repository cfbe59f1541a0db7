"""The work that a storm's tasks do: `bursar work bursar_lab.storm.shop:b --policy FILE` does it."""

from __future__ import annotations

import asyncio

import bursar

WORK_S = 0.02

b = bursar.Bursar("policy.toml")


@b.task(needs="{name}:E")
async def touch(name: str = "nothing") -> str:
    await asyncio.sleep(WORK_S)
    return "touched"
