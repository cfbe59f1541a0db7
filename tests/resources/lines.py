"""The lines of the contract, each a function of a connection: what `test_contract.py` runs for every
way to the door, and `test_breaches.py` runs against a door that was broken on purpose."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from typing import Any, get_args, get_origin

import msgspec
from tests.resources.places import KEYS, KINDS, LIMITED, LOTS, Caller

from bursar.claims.fences import StaleFence
from bursar.errors import Refused, Unknown, UsageError
from bursar.integrations.guards import SqlGuard

SLACK_S = 1.0
"""For a machine with other things to do, beyond the quarter of a second that the contract allows."""

SOON_S = 10.0


class Broken(AssertionError):
    """A line of the contract does not hold."""


def require(holds: object, why: str) -> None:
    if not holds:
        raise Broken(why)


def step_of(caller: Caller, kind: str) -> int:
    """How much to take at a time. Each is a round trip over HTTP, and a period is a second."""
    step = 10 if kind in ("quota", "fast") else 1
    return step if caller.has_lots else 10 * step


async def use_up(caller: Caller, kind: str, tenant: str = "acme") -> Refused:
    """Take until it is refused; the refusal."""
    grants: list[Any] = []
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                grants.append(await caller.acquire(kind, step_of(caller, kind), tenant=tenant))
            except Refused as refused:
                return refused


async def answers_come_in_time(caller: Caller) -> None:
    """acquire ends in a Grant, Refused, Unknown or UsageError within the wait and a quarter."""
    for kind in KINDS:
        held = [await caller.acquire(kind)]
        for wait in (0.0, 0.3):
            for _ in range(3):
                began = time.monotonic()
                try:
                    held.append(await caller.acquire(kind, wait=wait))
                except (Refused, Unknown) as answer:
                    require(str(answer), f"{kind}: an answer without a word")
                took = time.monotonic() - began
                require(took <= wait + 0.25 + SLACK_S, f"{kind}: wait={wait} was answered after {took:.2f} s")
        for grant in held:
            await caller.release(grant)


async def a_lot_in_hand_is_a_decrement(caller: Caller) -> None:
    """In hand: no I/O, no await that yields."""
    if not caller.has_lots:
        return
    for kind in LOTS:
        resource = caller.b.resource(kind)
        door = resource._resource if caller.sync else resource
        lot = await _spend_from_lot(caller, door, kind)
        if not caller.sync and door.hand.lots.get("globex") is lot and lot.left:
            taking = door.acquire("globex", wait=1).__await__()
            try:
                next(taking)
                if door._now() >= lot.until:
                    continue  # it ended before it was asked
                raise Broken(f"{kind}: acquire yields with a lot in hand")
            except StopIteration:
                pass


async def _spend_from_lot(caller: Caller, door: Any, kind: str) -> Any:
    """A lot from which one token went. A lot lasts milliseconds: one that ended meanwhile says nothing."""
    async with asyncio.timeout(SOON_S):
        while True:
            lot = door.hand.lots.get("globex")
            if lot is None or lot.left < 2:
                await caller.try_acquire(kind, tenant="globex")
                await asyncio.sleep(0.005)
                continue
            left = lot.left
            granted = await caller.try_acquire(kind, tenant="globex")
            if door._now() >= lot.until:
                continue
            require(granted, f"{kind}: the lot in hand was not used")
            require(lot.left == left - 1, f"{kind}: a grant is not a decrement of the lot")
            return lot


async def without_lots_try_acquire_says_so(caller: Caller) -> None:
    if not caller.has_lots:
        return
    for kind in set(KINDS) - set(LOTS):
        try:
            await caller.try_acquire(kind)
            raise Broken(f"{kind} has nothing ahead of use, and try_acquire does not say so")
        except UsageError as error:
            require("acquire" in str(error), str(error))


async def refusals_are_true(caller: Caller) -> None:
    """why has true numbers; with no other load, the same call after retry_after is granted; None where
    no time can be promised."""
    for kind in LIMITED:
        amount = step_of(caller, kind)
        refused = await use_up(caller, kind)
        require(refused.remaining is not None and refused.remaining < amount, f"{kind}: {vars(refused)}")
        require(refused.limit in (100, 1000), f"{kind}: the limit is not {refused.limit}")
        if kind in ("quota", "fast"):
            require(refused.retry_after is None, f"{kind}: a quota without a window promises a time")
            continue
        require(refused.retry_after is not None, f"{kind}: no retry_after")
        await asyncio.sleep(float(refused.retry_after or 0) + 0.001)
        try:
            await caller.release(await caller.acquire(kind))
        except Refused as again:
            raise Broken(f"{kind}: said {refused.retry_after} s and refused again: {again.why}") from again
    held = await caller.acquire("claim")
    try:
        await caller.acquire("claim")
        raise Broken("claim: a name was granted twice")
    except Refused as refused:
        require(refused.retry_after is None, "claim: a time is promised for a name that somebody holds")
    await caller.release(held)


async def keys_make_one_of_two(caller: Caller) -> None:
    for kind in KINDS:
        if kind not in KEYS:
            try:
                await caller.acquire(kind, key="k")
                raise Broken(f"{kind}: a key is ignored in silence")
            except UsageError as error:
                require("quota" in str(error) and "claim" in str(error), str(error))
            continue
        first = await caller.acquire(kind, 3, key="k")
        again = await caller.acquire(kind, 3, key="k")
        require(again.replayed and not first.replayed, f"{kind}: a repeat does not say so")
        if kind == "claim":
            require(again.fence == first.fence, "claim: a repeat has another fence")
            await caller.release(first)
        else:
            before = (await caller.statistics(kind)).tenants["acme"].granted
            require(before == 3, f"{kind}: {before} tokens were granted for one key")
            await caller.settle(first, 2)
            third = await caller.acquire(kind, 3, key="k")
            require(third.replayed and third.used == 2, f"{kind}: used says {third.used}, not 2")
            failed = await caller.acquire(kind, 3, key="f")
            await caller.fail(failed)
            anew = await caller.acquire(kind, 3, key="f")
            require(not anew.replayed, f"{kind}: a key that was given back unused is not free")
            await caller.settle(anew, 3)
        try:
            await caller.acquire(kind, 2, key="k")
            if kind != "claim":
                raise Broken(f"{kind}: one key for two amounts")
        except UsageError:
            pass


async def cancelling_leaves_nothing_held(caller: Caller) -> None:
    if caller.sync:
        return  # a thread cannot be cancelled
    held = await caller.acquire("claim")
    for kind in ("rate", "claim", "quota"):
        for turns in range(8):
            asking = asyncio.ensure_future(caller.acquire(kind, wait=5, tenant="globex"))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            if asking.cancelled():
                continue
            if asking.exception() is None:
                await caller.release(asking.result())
    await caller.release(held)
    async with asyncio.timeout(SOON_S):
        await caller.release(await caller.acquire("claim", wait=5))
        while True:
            found = await caller.statistics("quota")
            if _builtins(found.part)["holds"] == 0:
                break
            await asyncio.sleep(0.01)


async def a_released_name_is_free_at_once(caller: Caller) -> None:
    """Whoever has left a claim finds its names free, without a wait."""
    for _ in range(5):
        try:
            await caller.release(await caller.acquire("claim"))
        except Refused as refused:
            raise Broken(f"claim: released, and still held: {refused.why}") from refused


async def settling_is_checked_and_gives_back(caller: Caller) -> None:
    for kind in ("quota", "fast"):
        grant = await caller.acquire(kind, 100)
        await caller.settle(grant, 40)
        await _until_remaining(caller, kind, 960)
        failed = await caller.acquire(kind, 100)
        await caller.fail(failed)
        await _until_remaining(caller, kind, 960)
        grant = await caller.acquire(kind, 10)
        try:
            await caller.settle(grant, 5000)
            raise Broken(f"{kind}: settling for more than was acquired is no error")
        except UsageError as error:
            require("5000" in str(error), str(error))
        await caller.release(grant)
        await _until_remaining(caller, kind, 950)


async def work_is_held_for_long_and_spent_in_parts(caller: Caller) -> None:
    """By quotas; the other kinds say which kind does."""
    for kind in ("quota", "fast"):
        grant = await caller.acquire(kind, 100, hold=900, wait=2)
        await caller.extend(grant, 1800)
        await caller.spend(grant, 30)
        await caller.spend(grant, 12)
        try:
            await caller.spend(grant, 59)
            raise Broken(f"{kind}: more was spent than is held, and nothing was said")
        except Refused as refused:
            require("over" in refused.why, refused.why)
        await caller.release(grant)
        await _until_remaining(caller, kind, 958)
    for kind in set(KINDS) - {"quota", "fast"}:
        grant = await caller.acquire(kind, wait=2)
        for do in (caller.spend, caller.extend):
            try:
                await do(grant, 60)
                raise Broken(f"{kind}: it cannot be held for long, and nothing was said")
            except UsageError as error:
                require("quota" in str(error), f"{kind}: {error}")
        await caller.release(grant)
        if kind != "claim":
            try:
                await caller.acquire(kind, hold=60)
                raise Broken(f"{kind}: hold= was taken")
            except UsageError as error:
                require("quota" in str(error), f"{kind}: {error}")


async def use_beyond_what_was_held_follows_the_policy(caller: Caller) -> None:
    """With over = "overdraft": what is left, then the overdraft; what is beyond is refused and counted."""
    for kind in ("quota", "fast"):
        held = await caller.acquire(kind, 600, wait=2)
        grant = await caller.acquire(kind, 100, wait=2)
        await caller.spend(grant, 150)
        require(grant.amount == 150, f"{kind}: a hold of 100 of which 150 are used has {grant.amount}")
        try:
            await caller.settle(grant, 500)
            raise Broken(f"{kind}: 500 of 400 and an overdraft of 50 were charged")
        except Refused as refused:
            require(refused.reason == "unpaid" and "50 beyond" in refused.why, f"{kind}: {refused.why}")
        await _until_remaining(caller, kind, 0)
        row = _builtins((await caller.statistics(kind)).part)["tenants"]["acme"]
        require((row["overdrawn"], row["unpaid"]) == (50, 50), f"{kind}: {row}")
        await caller.settle(held, 600)


async def _until_remaining(caller: Caller, kind: str, left: int) -> None:
    found = None
    for _ in range(200):
        part = _builtins((await caller.statistics(kind)).part)
        tenant = part["tenants"]["acme"]
        found = 1000 - tenant["spent"] - tenant["held"]
        if found == left:
            return
        await asyncio.sleep(0.01)
    raise Broken(f"{kind}: {found} are left, not {left}")


async def grants_say_their_period(caller: Caller) -> None:
    for kind in ("rate", "pool"):
        grant = await caller.acquire(kind)
        require(grant.period > 0, f"{kind}: a grant says no period")
        await caller.release(grant)


async def counters_count_tokens_and_requests(caller: Caller) -> None:
    for kind in KINDS:
        before = (await caller.statistics(kind)).tenants.get("globex")
        grants = [await caller.acquire(kind, 3, tenant="globex", wait=1)]
        await caller.release(grants[0])
        grants.append(await caller.acquire(kind, 2, tenant="globex", wait=1))
        await caller.release(grants[1])
        await _until_counted(
            caller,
            kind,
            (before.granted if before else 0) + 5,
            (before.granted_requests if before else 0) + 2,
        )


async def _until_counted(caller: Caller, kind: str, tokens: int, requests: int) -> None:
    found = None
    for _ in range(300):  # what was spent from a lot at a client is told when the lot ends
        tally = (await caller.statistics(kind)).tenants["globex"]
        found = (tally.granted, tally.granted_requests)
        if found == (tokens, requests):
            return
        await asyncio.sleep(0.01)
    raise Broken(f"{kind}: counted {found}, not {(tokens, requests)}")


async def an_unknown_tenant_is_refused_by_name(caller: Caller) -> None:
    for kind in set(KINDS) - {"claim"}:
        try:
            await caller.acquire(kind, tenant="acne", wait=2)
            raise Broken(f"{kind}: an unknown tenant was granted")
        except Refused as refused:
            require('"acme"' in refused.why, f"{kind}: {refused.why}")


async def a_request_beyond_everything_is_refused_at_once(caller: Caller) -> None:
    for kind in LIMITED:
        began = time.monotonic()
        try:
            await caller.acquire(kind, 1_000_000, wait=30)
            raise Broken(f"{kind}: a million was granted")
        except Refused as refused:
            require(refused.limit is not None, f"{kind}: {refused.why}")
        took = time.monotonic() - began
        require(took < 0.25 + SLACK_S, f"{kind}: it took {took:.2f} s to refuse what can never be")


async def bad_input_is_a_usage_error(caller: Caller) -> None:
    for kind in set(KINDS) - {"claim"}:
        for amount in (0, -1, 2**63, True, 1.5, "3"):
            try:
                await caller.acquire(kind, amount)  # type: ignore[arg-type]
                raise Broken(f"{kind}: amount {amount!r} was taken")
            except UsageError:
                pass
        for tenant in ("", "a\nb", "x" * 300):
            try:
                await caller.acquire(kind, tenant=tenant)
                raise Broken(f"{kind}: tenant {tenant!r} was taken")
            except UsageError:
                pass
        for wait in (-1, float("nan"), 1e9):
            try:
                await caller.acquire(kind, wait=wait)
                raise Broken(f"{kind}: wait {wait!r} was taken")
            except UsageError:
                pass


async def explanations_say_something(caller: Caller) -> None:
    for kind in KINDS:
        found = await caller.explain(kind)
        require(found.sentences and found.kind, f"{kind}: no explanation")


async def every_number_says_what_it_is(caller: Caller) -> None:
    """Statistics are frozen structs whose fields say counter, gauge or label."""
    for kind in KINDS:
        statistics = await caller.statistics(kind)
        _check_annotated(type(statistics))
        if caller.way.startswith("here"):
            _check_annotated(type(statistics.part))


def _check_annotated(struct: type) -> None:
    hints = msgspec.structs.fields(struct)
    for field in hints:
        if field.name == "part":
            continue
        metas = (
            [arg for arg in get_args(field.type) if isinstance(arg, msgspec.Meta)]
            if get_origin(field.type)
            else []
        )
        declared = [meta for meta in metas if meta.extra and "metric" in meta.extra]
        require(declared, f"{struct.__name__}.{field.name} does not say what it is")


async def several_at_once_is_all_or_nothing(caller: Caller) -> None:
    if not caller.has_lots:
        return  # of several resources one by one
    grant = await caller.acquire_all({"rate": 1, "quota": 40, "fast": 40}, wait=2)
    grant.settle({"quota": 30, "fast": 30})
    await caller.release(grant)
    await _until_remaining(caller, "quota", 970)
    await _until_remaining(caller, "fast", 970)
    used = await caller.acquire("fast", 970)
    await caller.settle(used, 970)
    try:
        await caller.acquire_all({"rate": 1, "quota": 40, "fast": 40}, wait=0.2)
        raise Broken("a quota that is used up was granted with others")
    except Refused as refused:
        require(refused.limit == 1000, f"{vars(refused)}")
    await _until_remaining(caller, "quota", 970)


async def shadow_lets_everybody_go_and_counts(caller: Caller) -> None:
    """Every kind: the caller goes at once; would_refuse counts what ran out of time."""
    for kind in KINDS:
        amount = 300 if kind in ("quota", "fast", "share") else 40
        tenant = "acme"
        for number in range(6):
            if kind == "claim":
                grant = await caller.acquire(kind, 1, tenant=tenant)
                if number:
                    _check_shadow_fence(grant.fence["thing-0"])
            else:
                grant = await caller.acquire(kind, amount, tenant=tenant)
            require(grant, f"{kind}: not granted")
            if number > 3:
                await caller.release(grant)
        await _until_would_refuse(caller, kind)


def _check_shadow_fence(fence: int) -> None:
    guard, rows = SqlGuard(), sqlite3.connect(":memory:")
    guard.create(rows)
    try:
        guard.check(rows, "thing-0", fence)
    except StaleFence:
        return
    raise Broken("claim: a guard accepts the fence of a shadow grant")


async def _until_would_refuse(caller: Caller, kind: str) -> None:
    for _ in range(300):
        tally = (await caller.statistics(kind)).tenants["acme"]
        if tally.would_refuse_requests:
            require(tally.would_refuse >= tally.would_refuse_requests, f"{kind}: {tally}")
            require(tally.refused == 0, f"{kind}: something was refused")
            return
        await asyncio.sleep(0.01)
    raise Broken(f"{kind}: nothing was counted that would have been refused")


def _builtins(part: Any) -> Any:
    return msgspec.to_builtins(part)


LINES = (
    answers_come_in_time,
    a_lot_in_hand_is_a_decrement,
    without_lots_try_acquire_says_so,
    refusals_are_true,
    keys_make_one_of_two,
    cancelling_leaves_nothing_held,
    a_released_name_is_free_at_once,
    settling_is_checked_and_gives_back,
    work_is_held_for_long_and_spent_in_parts,
    grants_say_their_period,
    counters_count_tokens_and_requests,
    an_unknown_tenant_is_refused_by_name,
    a_request_beyond_everything_is_refused_at_once,
    bad_input_is_a_usage_error,
    explanations_say_something,
    every_number_says_what_it_is,
    several_at_once_is_all_or_nothing,
)
