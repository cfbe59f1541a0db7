"""Each line of the contract, broken on purpose, in the door and in a kind: the suite must notice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.resources import lines
from tests.resources.places import KINDS, make_policy, open_way

from bursar.claims.resource import ClaimDecider
from bursar.errors import Refused
from bursar.pools.resource import PoolDecider
from bursar.quotas.resource import QuotaDecider
from bursar.rates.resource import RateDecider
from bursar.resource import door, several
from bursar.resource.asking import Asking
from bursar.resource.decider import Explanation
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.resource.tallies import TallyCounter
from bursar.resource.tickets import Granted, Ticket

PATIENCE_S = 5.0
"""A line that is kept is through long before; one that is waiting by now waits for ever."""

Line = Callable[[Any], Awaitable[None]]
Break = Callable[[pytest.MonkeyPatch], None]


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Break:
    """Puts `make(the original)` in place of a method."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(owner, name, make(getattr(owner, name)))

    return apply


def _no(*_: Any, **__: Any) -> None:
    return None


def _slow(original: Any) -> Any:
    def decide(self: Any, ticket: Ticket) -> None:
        time.sleep(3.0 if ticket.wait_ns else 0.0)
        original(self, ticket)

    return decide


def _never_ahead(original: Any) -> Any:
    def decide(self: Any, ticket: Ticket) -> None:
        ticket.ahead = 0
        original(self, ticket)

    return decide


def _false_numbers(original: Any) -> Any:
    def conclude(self: Any, ticket: Ticket, answer: Any, asked_at: int) -> Granted:
        if isinstance(answer, Refused):
            answer.remaining = answer.limit
        granted: Granted = original(self, ticket, answer, asked_at)
        return granted

    return conclude


def _hasty(original: Any) -> Any:
    """A kind that says "at once" whenever it refuses."""

    def decide(self: Any, ticket: Ticket) -> None:
        give = ticket.give

        def hurry(answer: Any) -> None:
            if isinstance(answer, Refused) and answer.retry_after is not None:
                answer.retry_after = 0.0
            give(answer)

        broken = _Hurried(ticket, hurry)
        original(self, broken)
        ticket.answer = ticket.answer or broken.answer

    return decide


class _Hurried(Ticket):
    """A ticket whose refusals promise too much."""

    __slots__ = ("_hurry",)

    def __init__(self, ticket: Ticket, hurry: Callable[[Any], None]) -> None:
        super().__init__(ticket.tenant, ticket.amount, wait_ns=ticket.wait_ns, ahead=ticket.ahead)
        self._hurry = hurry

    def give(self, answer: Any) -> None:
        self._hurry(answer)


def _forget_keys(original: Any) -> Any:
    def decide(self: Any, ticket: Ticket) -> None:
        ticket.key = None
        original(self, ticket)

    return decide


def _charge_all(original: Any) -> Any:
    async def settle(self: Any, id: str, used: int | None) -> None:
        await original(self, id, None)

    return settle


def _unchecked(original: Any) -> Any:
    def settle(self: Grant, used: int) -> None:
        self._used = min(used, self.amount)

    return settle


def _mixed_up(original: Any) -> Any:
    def add(self: TallyCounter, tokens: int, requests: int) -> None:
        original(self, requests, requests)

    return add


def _anybody(original: Any) -> Any:
    def check(self: Resource, ticket: Ticket) -> None:
        ticket.tenant = "acme" if ticket.tenant == "acne" else ticket.tenant
        original(self, ticket)

    return check


def _silent(original: Any) -> Any:
    def explain(self: Any, tenant: str) -> Explanation:
        return Explanation(resource=self.name, kind=self.kind, tenant=tenant, sentences=())

    return explain


class Unsaid(msgspec.Struct, frozen=True):
    number: int = 1


def _unsaid(original: Any) -> Any:
    return lambda self: Unsaid()


async def _no_return(grants: dict[str, Grant]) -> None:
    grants.clear()


def _put_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """Neither before the scarce one is waited for, nor at the end."""
    patch.setattr(several, "_put_back", _no_return)
    patch.setattr(door.Resource, "put_back", lambda self, grant: None)


BREACHES: dict[str, tuple[Line, Break]] = {
    "door: answers late": (
        lines.answers_come_in_time,
        _replace(Asking, "_patience_ns", lambda was: lambda self, ticket: was(self, ticket) + 2 * 10**9),
    ),
    "rate: decides slowly": (lines.answers_come_in_time, _replace(RateDecider, "decide", _slow)),
    "door: does not spend its lots": (
        lines.a_lot_in_hand_is_a_decrement,
        _replace(
            Resource,
            "try_acquire",
            lambda was: lambda self, tenant, amount=1: self._try_further(tenant, amount),
        ),
    ),
    "pool: hands out no lots": (
        lines.a_lot_in_hand_is_a_decrement,
        _replace(PoolDecider, "decide", _never_ahead),
    ),
    "door: try_acquire is silent": (
        lines.without_lots_try_acquire_says_so,
        _replace(Resource, "_try_further", lambda was: _no),
    ),
    "door: false numbers": (lines.refusals_are_true, _replace(Asking, "conclude", _false_numbers)),
    "rate: promises too soon": (lines.refusals_are_true, _replace(RateDecider, "decide", _hasty)),
    "door: keys are ignored": (
        lines.keys_make_one_of_two,
        _replace(Resource, "_check_key", lambda was: _no),
    ),
    "quota: keys are ignored": (lines.keys_make_one_of_two, _replace(QuotaDecider, "decide", _forget_keys)),
    "door: the cancelled stay": (
        lines.cancelling_leaves_nothing_held,
        _replace(Asking, "_abandon", lambda was: _no),
    ),
    "claim: what nobody wants stays": (
        lines.cancelling_leaves_nothing_held,
        _replace(ClaimDecider, "finish", lambda was: _no),
    ),
    "claim: a name is released late": (
        lines.a_released_name_is_free_at_once,
        _replace(ClaimDecider, "finish", lambda was: _no),
    ),
    "door: settles anything": (
        lines.settling_is_checked_and_gives_back,
        _replace(Grant, "settle", _unchecked),
    ),
    "quota: charges everything": (
        lines.settling_is_checked_and_gives_back,
        _replace(QuotaDecider, "settle", _charge_all),
    ),
    "door: no period": (
        lines.grants_say_their_period,
        _replace(Grant, "period", lambda was: property(lambda self: 0)),
    ),
    "door: requests for tokens": (
        lines.counters_count_tokens_and_requests,
        _replace(TallyCounter, "add", _mixed_up),
    ),
    "door: lets anybody in": (
        lines.an_unknown_tenant_is_refused_by_name,
        _replace(Resource, "check", _anybody),
    ),
    "rate: waits for what can never be": (
        lines.a_request_beyond_everything_is_refused_at_once,
        _replace(RateDecider, "most", lambda was: _no),
    ),
    "door: takes any amount": (
        lines.bad_input_is_a_usage_error,
        lambda patch: patch.setattr(door, "check_amount", _no),
    ),
    "rate: explains nothing": (
        lines.explanations_say_something,
        _replace(RateDecider, "explain", _silent),
    ),
    "rate: numbers without a meaning": (
        lines.every_number_says_what_it_is,
        _replace(RateDecider, "statistics", _unsaid),
    ),
    "door: lets be spent what nobody acquired": (
        lines.work_is_held_for_long_and_spent_in_parts,
        lambda patch: patch.setattr(Resource, "grow", _grow_unasked),
    ),
    "door: puts nothing back": (
        lines.several_at_once_is_all_or_nothing,
        _put_nothing_back,
    ),
}


async def _grow_unasked(door: Resource, grant: Grant, size: int) -> None:
    grant.amount = size


@pytest.mark.parametrize("breach", BREACHES)
async def test_a_breach_is_caught(breach: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, broken = BREACHES[breach]
    async with open_way("here-async", make_policy(tmp_path)) as caller:
        broken(monkeypatch)
        with pytest.raises((lines.Broken, TimeoutError, AssertionError, TypeError, Refused)):
            async with asyncio.timeout(PATIENCE_S):
                await line(caller)
        monkeypatch.undo()


async def test_a_shadow_that_does_not_count_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TallyCounter, "let_through", _no)
    policy = make_policy(tmp_path, **dict.fromkeys(KINDS, "shadow = true"))
    async with open_way("here-async", policy) as caller:
        with pytest.raises(lines.Broken, match="nothing was counted"):
            await lines.shadow_lets_everybody_go_and_counts(caller)
