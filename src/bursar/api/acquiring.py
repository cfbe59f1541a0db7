"""Acquire, claim, renew, settle, release."""

from __future__ import annotations

import msgspec

from bursar.api import bodies
from bursar.api.desk import Answered, Call
from bursar.api.errors import StateError
from bursar.api.holdings import Held
from bursar.api.ratelimit import Writer
from bursar.resource.door import Resource
from bursar.resource.grants import Acquisition, Grant
from bursar.resource.guarded import Guarded


async def acquire(call: Call) -> Answered:
    body: bodies.Acquire = call.body
    call.check("acquire", call.resource, body.tenant)
    door = call.desk.find(call.resource)
    acquisition = door.acquire(body.tenant, body.amount, wait=body.wait, key=body.key, hold=body.hold)
    return await _take(call, door, acquisition)


async def claim(call: Call) -> Answered:
    body: bodies.Claim = call.body
    call.check("acquire", call.resource, body.tenant)
    door = call.desk.find(call.resource)
    acquisition = door.claim(body.names, body.tenant, wait=body.wait, key=body.key, priority=body.priority)
    return await _take(call, door, acquisition)


async def announce(call: Call) -> Answered:
    door = Guarded(call.desk.find(call.resource), call.caller)
    found = await door.do("announce", msgspec.to_builtins(call.body))
    return Answered(msgspec.convert(found, bodies.Announced))


async def _take(call: Call, door: Resource, acquisition: Acquisition) -> Answered:
    holdings = call.desk.holdings
    holdings.check_room(call.caller.name)
    grant = await call.desk.wait(_open(acquisition), call.gone, _undo)
    held = await holdings.add(door, grant, call.caller.name, call.body.key, call.body.ttl)
    return _answer(call, held, grant, created=True)


async def _open(acquisition: Acquisition) -> Grant:
    return await acquisition


async def _undo(grant: Grant) -> None:
    """Nobody is there to take it. A repeat of what somebody else settles is that one's."""
    if grant.closed or (grant.replayed and grant.settles):
        return
    grant.settle(0)
    await grant.release()


def _answer(call: Call, held: Held, grant: Grant, *, created: bool) -> Answered:
    writer = Writer(held.door.name)
    writer.learn(held.door)
    fields = writer.write_grant(grant)
    if created:
        fields.append((b"location", f"/v1/grants/{held.id}".encode("ascii")))
    return Answered(_describe(call, held, grant), 201 if created else 200, fields)


def _describe(call: Call, held: Held, grant: Grant) -> bodies.Granted:
    return bodies.Granted(
        id=held.id,
        resource=held.door.name,
        tenant=grant.tenant,
        amount=grant.amount,
        expires_in=call.desk.holdings.seconds_left(held),
        settle_id=grant.id or None if grant.settles else None,
        period=grant.period,
        fence={name: str(phase) for name, phase in grant.fence.items()},
        fallback=grant.fallback,
        replayed=grant.replayed,
        used=grant.used,
        limit=grant.limit,
        remaining=grant.remaining,
        reset_after=grant.reset_after,
    )


def _find(call: Call) -> Held:
    held = call.desk.holdings.find(call.path["id"])
    call.check("acquire", held.door.name, held.grant.tenant)
    return held


async def show(call: Call) -> Answered:
    held = _find(call)
    return _answer(call, held, held.grant, created=False)


async def renew(call: Call) -> Answered:
    held = _find(call)
    call.desk.holdings.renew(held, call.body.ttl)
    return _answer(call, held, held.grant, created=False)


async def extend(call: Call) -> Answered:
    """Its holder is still there, too."""
    held, hold = _find(call), call.body.hold
    await held.grant.extend(hold)
    call.desk.holdings.renew(held, min(hold, bodies.TTL_MAX_S))
    return _answer(call, held, held.grant, created=False)


async def spend(call: Call) -> Answered:
    held = _find(call)
    more = call.body.used - (held.grant.used or 0)
    if more > 0:
        await held.grant.spend(more)
    return _answer(call, held, held.grant, created=False)


async def settle(call: Call) -> Answered:
    return await _end(call, call.body.used)


async def release(call: Call) -> Answered:
    return await _end(call, None)


async def _end(call: Call, used: int | None) -> Answered:
    """Ending again what is over is no mistake, if it is said to have ended in the same way."""
    over = call.desk.holdings.find_over(call.path["id"])
    if over is None:
        await call.desk.holdings.end(_find(call), used)
        return Answered(status=204)
    call.check("acquire", over.resource, over.tenant)
    if used is not None and over.used != used:
        before = "as a whole" if over.used is None else f"for {over.used}"
        raise StateError(f"this grant was ended before, {before}")
    if used is not None and over.problem is not None:
        raise over.problem.with_traceback(None)
    return Answered(status=204)


async def settle_anywhere(call: Call) -> Answered:
    """By the id that the ledgers know."""
    await Guarded(call.desk.find(call.resource), call.caller).settle(call.body.id, call.body.used)
    return Answered(status=204)
