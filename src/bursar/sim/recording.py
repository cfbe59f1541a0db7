"""What is done at front doors during a run: which terms were in force, which verbs were used.

A recorder stands around the public methods of doors and grants while it is entered, and is gone
afterwards: a run that nobody records pays nothing, and one that is recorded has the same history, because
nothing here waits, draws or writes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bursar.fleet import changes, tenants
from bursar.fleet.following import Follower
from bursar.resource.decider import Offers
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.sim.terms import read_values

FLEET = "fleet"
FLEET_VERBS = {
    "apply": changes,
    "rollback": changes,
    "set_tenants": tenants,
    "enter": Follower,
    "leave": Follower,
}
"""What operators do to all kinds alike, and where it is."""

ALWAYS = (
    "acquire",
    "cancel",
    "explain",
    "reconfigure",
    "release",
    "settle",
    "snapshot",
    "statistics",
    "stop",
)
OFFERED = {
    "keys": ("acquire by key",),
    "names": ("claim", "claim by priority"),
    "settles": ("settle by id", "whose"),
    "lots": ("try_acquire", "fetch"),
    "holds": ("acquire to hold", "extend", "grow"),
}
"""What a kind can do besides, by what it offers (`bursar.resource.decider.Offers`)."""

HELD = ("extend", "grow")

Name = tuple[str, str]
"""A kind, and one of its keys or verbs."""


class Recorder:
    """Everything that was seen, by kind."""

    def __init__(self) -> None:
        self.values: dict[Name, set[str]] = {}
        self.offered: set[Name] = {(FLEET, verb) for verb in FLEET_VERBS}
        self.done: Counter[Name] = Counter()

    @contextmanager
    def recording(self) -> Iterator[None]:
        with ExitStack() as stack:
            for place, name, around in self._list_wrappers():
                stack.enter_context(_wrapped(place, name, around))
            yield

    def _list_wrappers(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        for name in ("acquire", "claim", "try_acquire", "snapshot"):
            yield Resource, name, self._note_call(name)
        for name in ("fetch", "explain", "statistics", "stop", "whose", "verb", "reconfigure", *HELD):
            yield Resource, name, self._note_answer(name)
        yield Resource, "__init__", self._note_opening
        yield Resource, "settle", self._note_answer("settle by id")
        yield Resource, "take", self._note_cancelling
        for name in ("settle", "release"):
            yield Grant, name, self._note_grant(name)
        for name, place in FLEET_VERBS.items():
            yield place, name, self._note_change(name)

    def note_policy(self, policy: Any) -> None:
        for key, value in read_values(policy):
            self.values.setdefault((policy.kind, key), set()).add(value)

    # -- what stands around each method: it is given the method, and returns what is called instead

    def _note_opening(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def opened(door: Resource, world: Any, decider: Any, policy: Any) -> None:
            method(door, world, decider, policy)
            verbs = [*ALWAYS, *door.verbs, *_list_offered(decider.offers)]
            if decider.offers.names:
                verbs.remove("settle")  # names are held or not: nobody uses a part of them
            self.offered |= {(door.kind, verb) for verb in verbs}
            if policy is not None:
                self.note_policy(policy)

        return opened

    def _note_call(self, verb: str) -> Callable[..., Any]:
        def around(method: Callable[..., Any]) -> Callable[..., Any]:
            def called(door: Resource, *args: Any, **options: Any) -> Any:
                self.done[door.kind, verb] += 1
                if options.get("key") is not None:
                    self.done[door.kind, "acquire by key"] += 1
                if options.get("hold") is not None:
                    self.done[door.kind, "acquire to hold"] += 1
                if options.get("priority"):
                    self.done[door.kind, "claim by priority"] += 1
                return method(door, *args, **options)

            return called

        return around

    def _note_answer(self, verb: str) -> Callable[..., Any]:
        """Counted once it was done: what only ever fails was not tried."""

        def around(method: Callable[..., Any]) -> Callable[..., Any]:
            async def called(door: Resource, *args: Any, **options: Any) -> Any:
                answer = await method(door, *args, **options)
                self.done[door.kind, args[0] if verb == "verb" else verb] += 1
                if verb == "reconfigure":
                    self.note_policy(args[0])
                return answer

            return called

        return around

    def _note_cancelling(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def called(door: Resource, *args: Any, **options: Any) -> Any:
            try:
                return await method(door, *args, **options)
            except asyncio.CancelledError:
                self.done[door.kind, "cancel"] += 1
                raise

        return called

    def _note_grant(self, verb: str) -> Callable[..., Any]:
        def around(method: Callable[..., Any]) -> Callable[..., Any]:
            def called(grant: Grant, *args: Any) -> Any:
                self.done[grant._door.kind, verb] += 1
                return method(grant, *args)

            return called

        return around

    def _note_change(self, verb: str) -> Callable[..., Any]:
        def around(method: Callable[..., Any]) -> Callable[..., Any]:
            async def called(*args: Any, **options: Any) -> Any:
                answer = await method(*args, **options)
                self.done[FLEET, verb] += 1
                return answer

            return called

        return around


def _list_offered(offers: Offers) -> list[str]:
    return [verb for offer, verbs in OFFERED.items() if getattr(offers, offer) for verb in verbs]


@contextmanager
def _wrapped(place: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    method = getattr(place, name)
    setattr(place, name, around(method))
    try:
        yield
    finally:
        setattr(place, name, method)
