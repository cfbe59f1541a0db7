"""Several resources at once: all or nothing, one grant to settle.

    async with b.acquire_all("acme", {"rpm": 1, "tpm": 4000, "budget": 4000}, wait=2) as grant:
        grant.settle({"tpm": 3120, "budget": 3120})

Nothing is held while waiting. Whichever resource has too little is waited for alone, in its own
queue; once it grants, the others are asked without waiting, and if one of them refuses, everything
goes back and that one is waited for. Resources whose grants are on disk come last, because what is
put back there cost most.

However many are asked, the answer comes within `wait` and a quarter of a second: each has what is left
of that, and what goes back at the end is not waited for.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any

from bursar.errors import Refused, Unknown, UsageError
from bursar.resource.checks import check_amount, check_used, check_wait
from bursar.resource.door import Resource
from bursar.resource.grants import Acquisition, Grant
from bursar.world import Clock

RESOURCES_MAX = 32


class GrantOfAll:
    """What was granted of several resources. Leave it by `async with`, or call `release()`."""

    def __init__(self, tenant: str, grants: Mapping[str, Grant]) -> None:
        self.tenant = tenant
        self.grants = dict(grants)

    @property
    def closed(self) -> bool:
        return all(grant.closed for grant in self.grants.values())

    def settle(self, used: Mapping[str, int]) -> None:
        """Say what was really used of some or all of them, by the name of the resource."""
        for name in used:
            if name not in self.grants:
                raise UsageError(f"{name!r} was not acquired; there is {', '.join(self.grants)}")
            check_used(used[name])
        problems = []
        for name, tokens in used.items():
            try:
                self.grants[name].settle(tokens)
            except UsageError as error:
                problems.append(error)  # the others are settled all the same
        if problems:
            raise problems[0]

    async def release(self) -> None:
        await self._leave(None)

    async def __aenter__(self) -> GrantOfAll:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        problems: list[BaseException] = []
        for grant in self.grants.values():
            try:
                await grant.__aexit__(type(error) if error else None, error, None)
            except (Refused, UsageError) as problem:
                problems.append(problem)  # the others are left all the same
        if problems:
            raise problems[0]

    def __repr__(self) -> str:
        parts = ", ".join(f"{grant.amount} of {name}" for name, grant in self.grants.items())
        return f"<GrantOfAll {parts} to {self.tenant}>"


class AcquisitionOfAll:
    """What `acquire_all` returns: await it, or use it in `async with`."""

    def __init__(
        self,
        clock: Clock,
        resources: Mapping[str, Resource],
        tenant: str,
        amounts: Mapping[str, int],
        wait: float,
    ) -> None:
        if not 1 <= len(amounts) <= RESOURCES_MAX:
            raise UsageError(f"acquire_all takes 1 to {RESOURCES_MAX} resources, not {len(amounts)}")
        for amount in amounts.values():
            check_amount(amount)
        self._clock = clock
        self._tenant = tenant
        self._amounts = dict(amounts)
        self._wait_ns = check_wait(wait)
        # Those that are undone most cheaply first; names last, since others wait for them.
        self._order = sorted(amounts, key=lambda name: _cost_of_undoing(resources[name]))
        self._resources = resources
        self._grant: GrantOfAll | None = None

    def __await__(self) -> Generator[Any, None, GrantOfAll]:
        return self._take().__await__()

    async def _take(self) -> GrantOfAll:
        until = self._clock.now() + self._wait_ns
        first: str | None = None
        grants: dict[str, Grant] = {}
        try:
            while True:
                scarce = await self._try_all(first, grants, until)
                if scarce is None:
                    return GrantOfAll(self._tenant, {name: grants[name] for name in self._amounts})
                await _put_back(grants)
                first = scarce
        except BaseException:
            for name, grant in grants.items():
                self._resources[name].put_back(grant)
            raise

    async def _try_all(self, first: str | None, grants: dict[str, Grant], until: int) -> str | None:
        """Take them all, waiting for the first alone. None: it is done; else the name of the one that
        had too little, and is to be waited for. Raises what it says if there is no time left."""
        left_ns = max(0, until - self._clock.now())
        if first is not None:
            grants[first] = await self._ask(first, left_ns, until)
        for name in self._order:
            if name in grants:
                continue
            try:
                grants[name] = await self._ask(name, 0, until)
            except (Refused, Unknown):  # at once; there may be time to wait for it
                if left_ns == 0:
                    raise
                return name
        return None

    async def _ask(self, name: str, wait_ns: int, until: int) -> Grant:
        resource = self._resources[name]
        by = until + resource.decider.answer_ns
        return await Acquisition(resource, self._tenant, self._amounts[name], wait_ns, None, by=by)

    async def __aenter__(self) -> GrantOfAll:
        self._grant = await self
        return self._grant

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._grant is not None, "entered before"
        await self._grant.__aexit__(kind, error, trace)


def _cost_of_undoing(resource: Resource) -> int:
    offers = resource.decider.offers
    return 2 if offers.names else 1 if offers.settles else 0


async def _put_back(grants: dict[str, Grant]) -> None:
    """As if they had never been granted."""
    for name in list(grants):
        grant = grants.pop(name)
        if not grant.closed:
            grant._used = 0
            await grant.release()
