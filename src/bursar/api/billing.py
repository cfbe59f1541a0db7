"""What was used of a quota, and what is left: for bills."""

from __future__ import annotations

from typing import Any

import msgspec

from bursar.api import bodies
from bursar.api.desk import Answered, Call
from bursar.resource.guarded import Guarded


async def list_usage(call: Call) -> Answered:
    query: bodies.UsageAsked = call.query
    found = await _do(call, "usage", {**msgspec.to_builtins(query), "tenant": query.tenant or ""})
    return Answered(msgspec.convert(found, bodies.UsagePage))


async def list_balances(call: Call) -> Answered:
    query: bodies.BalancesAsked = call.query
    found = await _do(call, "balance", {**msgspec.to_builtins(query), "tenant": query.tenant or ""})
    return Answered(msgspec.convert(found, bodies.BalancePage))


async def adjust(call: Call) -> Answered:
    found = await _do(call, "adjust", msgspec.to_builtins(call.body))
    return Answered(msgspec.convert(found, bodies.AdjustDone))


async def _do(call: Call, verb: str, arguments: dict[str, Any]) -> Any:
    return await Guarded(call.desk.find(call.resource), call.caller).do(verb, arguments)
