"""What a client asks for, drawn by its seed before it begins: each operation with the time at which it
is due, so that nothing depends on how fast the answers come.

An operation: {"at_ms", "do", "resource", "tenant", "amount", "wait_ms", "key", "names", "retry", "cancel_ms",
"hold_ms", "end", "used", "more", "more_wait_ms"}. `end` is what becomes of the grant: "release", "settle",
"elsewhere" (settled by its id, through another node), "late" (the same, seconds later) or "abandon".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from bursar_lab.storm.policies import NAMES, RESOURCES, kinds_of

Operation = dict[str, Any]

TENANTS = ("acme", "acme", "acme", "free", "free", "guest-1", "guest-2", "set-1", "set-2", "gold")
QUOTA_TENANTS = ("acme", "acme/search", "acme/search", "free", "free", "guest-1", "set-1", "gold")
POOL_TENANTS = ("acme", "acme", "free", "gold", "set-1", "nobody")
WAITS_MS = (0, 0, 50, 200, 1000)
LATE_MS = 3_000


def draw_operations(seed: str, kind: str, rate: float, seconds: float) -> list[Operation]:
    """For one client: `rate` a second on average, for so many seconds."""
    rng = random.Random(seed)
    found: list[Operation] = []
    at_s = rng.uniform(0, 1 / rate)
    kinds = kinds_of(kind)
    while at_s < seconds:
        if kind == "all" and rng.random() < 0.08:
            operation = _draw_all(rng)
        else:
            operation = _DRAW[rng.choice(kinds)](rng)
        found.append({"at_ms": int(at_s * 1000), **operation})
        at_s += rng.expovariate(rate)
    _name_keys(found, seed)
    return found


def _name_keys(operations: list[Operation], seed: str) -> None:
    """Keys are the client's own, and the same in every run of the seed."""
    for number, operation in enumerate(operations):
        if operation.pop("key", None):
            operation["key"] = f"{seed}-{number}"


def _draw_metered(resource: str, tenants: tuple[str, ...]) -> Callable[[random.Random], Operation]:
    """Of kinds that hand out tokens by the second."""

    def draw(rng: random.Random) -> Operation:
        amount = 1 if rng.random() < 0.7 else rng.randint(2, 5)
        chance = rng.random()
        operation: Operation = {
            "do": "try_acquire" if chance < 0.1 else "acquire",
            "resource": resource,
            "tenant": rng.choice(tenants),
            "amount": amount,
            "wait_ms": rng.choice(WAITS_MS),
            "hold_ms": rng.choice((0, 0, 5, 50)),
            "end": "release",
        }
        if chance > 0.98:
            operation |= {"amount": 0} if rng.random() < 0.5 else {"key": "not for this kind"}
        elif chance > 0.93 and operation["wait_ms"]:
            operation["cancel_ms"] = _draw_cancel(rng, operation["wait_ms"])
        elif rng.random() < 0.2:
            operation |= {"end": "settle", "used": rng.randint(0, amount)}
        return operation

    return draw


def _draw_quota(rng: random.Random) -> Operation:
    amount = rng.randint(1, 40)
    operation: Operation = {
        "do": "acquire",
        "resource": RESOURCES["quota"],
        "tenant": rng.choice(QUOTA_TENANTS),
        "amount": amount,
        "wait_ms": rng.choice(WAITS_MS),
        "hold_ms": rng.choice((0, 5, 50, 300)),
        "end": rng.choice(("release", "settle", "settle", "elsewhere", "late", "abandon")),
        "used": rng.randint(0, amount),
    }
    if rng.random() < 0.5:
        operation["key"] = True
        operation["retry"] = rng.random() < 0.4
    elif operation["wait_ms"] and rng.random() < 0.25:
        operation["cancel_ms"] = _draw_cancel(rng, operation["wait_ms"])
    return operation


def _draw_cancel(rng: random.Random, wait_ms: int) -> int:
    """Mostly while it is being decided, which takes no longer than a few milliseconds."""
    return rng.randint(0, wait_ms) if rng.random() < 0.3 else rng.randint(0, 4)


def _draw_claim(rng: random.Random) -> Operation:
    names = rng.sample(NAMES, rng.choice((1, 1, 2, 3)))
    operation: Operation = {
        "do": "claim",
        "resource": RESOURCES["claim"],
        "tenant": rng.choice(("acme", "gold", "free")),
        "names": [f"{name}:{rng.choice('EES')}" for name in names],
        "amount": len(names),
        "wait_ms": rng.choice((0, 200, 1000, 3000)),
        "hold_ms": rng.choice((5, 20, 100, 400)),
        "end": "release",
    }
    chance = rng.random()
    if chance < 0.15:
        operation["do"] = "submit"
        operation["key"] = rng.random() < 0.5
        operation["cancel_ms"] = rng.choice((None, None, 200))
    elif chance < 0.35:
        operation["key"] = True
        operation["retry"] = rng.random() < 0.3
    elif operation["wait_ms"] and chance < 0.45:
        operation["cancel_ms"] = _draw_cancel(rng, operation["wait_ms"])
    elif chance < 0.75:
        operation["more"] = _draw_more(rng, names)
        operation["more_wait_ms"] = rng.choice((0, 200, 1000, 3000))
    if operation["do"] == "claim" and rng.random() < 0.4:
        operation["names"].append(f"gpu:{rng.choice((1, 1, 2, 3))}")
        operation["amount"] += 1
    return operation


def _draw_more(rng: random.Random, names: list[str]) -> list[str]:
    """What it asks for while it holds the others."""
    others = rng.sample([name for name in NAMES if name not in names], rng.choice((1, 1, 2)))
    return [f"{name}:{rng.choice('EES')}" for name in others] + ["gpu:1"] * (rng.random() < 0.2)


def _draw_all(rng: random.Random) -> Operation:
    amount = rng.randint(1, 20)
    return {
        "do": "acquire_all",
        "resource": None,
        "tenant": rng.choice(("acme", "free", "gold")),
        "amounts": {"api": 1, "records": 1, "llm": amount},
        "wait_ms": rng.choice(WAITS_MS),
        "hold_ms": rng.choice((0, 20)),
        "end": rng.choice(("release", "settle")),
        "used": rng.randint(0, amount),
    }


_DRAW: dict[str, Callable[[random.Random], Operation]] = {
    "rate": _draw_metered(RESOURCES["rate"], TENANTS),
    "share": _draw_metered(RESOURCES["share"], ("acme", "free", "guest-1", "set-1", "gold")),
    "pool": _draw_metered(RESOURCES["pool"], POOL_TENANTS),
    "quota": _draw_quota,
    "claim": _draw_claim,
}
