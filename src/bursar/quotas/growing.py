"""More for a hold that is open: because it is used up in parts, or was settled above what was reserved.

What a hold may grow by, the policy says (`over`): nothing; what its accounts have left; or, where one of
them has nothing left, what the overdraft of that one has. Growing is reserving: the units are fetched from
other nodes like any others, and charged before they are used. Whoever asks says how large the hold is to be
and not by how much more, so asking again is asking once.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bursar.errors import StoreError, Unknown
from bursar.policy.values import QuotaPolicy
from bursar.quotas.balances import Hold
from bursar.quotas.chains import Chains
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.overdrafts import owner_of
from bursar.quotas.requests import Refusal, Taken
from bursar.quotas.windows import split_account
from bursar.resource.checks import AMOUNT_MAX
from bursar.resource.deadlines import Deadlines
from bursar.world import MILLISECOND_NS

ANSWER_NS = 180 * MILLISECOND_NS
"""To find more may take so long: whoever asked is answered within a quarter of a second."""

SANE = 1_000
"""Nobody has used more than so many times all that there is."""

Said = Hold | Refusal | Taken
Answered = asyncio.Future[Any]
Chain = tuple[str, ...]


class Growth:
    """The holds of one ledger."""

    def __init__(self, courier: QuotaCourier, chains: Chains, policy: QuotaPolicy) -> None:
        self.policy = policy
        self._courier = courier
        self._chains = chains
        self._clock = courier.world.clock
        self._deadlines = Deadlines(courier.world, f"{courier.topic}.growth")
        self._under_way: dict[int, asyncio.Event] = {}

    def start(self) -> None:
        self._deadlines.start()

    async def cover(self, hold: Hold, size: int) -> Refusal | None:
        """See that the hold has so many units, or as many of them as there are; None if it has them all, or
        is over. Raises Unknown: not everybody could be asked in time."""
        while (under_way := self._under_way.get(hold.number)) is not None:
            await under_way.wait()
        done = self._under_way[hold.number] = asyncio.Event()
        try:
            short = await self._cover(hold, size, self._clock.now() + ANSWER_NS)
        except (Exception, asyncio.CancelledError):  # `finally` would run after a crash too
            self._finish(hold, done)
            raise
        self._finish(hold, done)
        return short

    def most(self, hold: Hold) -> int:
        """What a hold may be settled with: use may pass a limit by far, but not without end. Beyond that it
        is a mistake, or malice, and would spoil what is counted as unpaid for good."""
        accounts = self._courier.book.ledger.accounts
        unpaid = max((accounts[each].unpaid for each in hold.accounts if each in accounts), default=0)
        whole = max(hold.size, *map(self._find_whole, hold.accounts))
        return max(hold.size, min(SANE * whole, AMOUNT_MAX - unpaid))

    def _find_whole(self, account: str) -> int:
        """Limit and overdraft."""
        terms, minted = self.policy.find(split_account(account)[0]), self._chains.limit(account)
        return minted if terms is None else max(minted, terms.limit) + terms.overdraft

    def _finish(self, hold: Hold, done: asyncio.Event) -> None:
        del self._under_way[hold.number]
        done.set()

    async def _cover(self, hold: Hold, size: int, until: int) -> Refusal | None:
        chain: Chain | None = hold.accounts
        short = Refusal(hold.accounts[0], None, size)
        while hold.used is None and hold.size < size:
            if chain is None or self.policy.over == "refuse":
                return short
            found = await self._take(hold, chain, size - hold.size, until)
            if found is not None:
                short, chain = found, await self._overdraw(chain, found.account, until)
        return None

    async def _take(self, hold: Hold, chain: Chain, more: int, until: int) -> Refusal | None:
        """As much as there is; what was short, if that is less."""
        short: Refusal | None = None
        while more > 0:
            said = await self._ask(hold, chain, more, until)
            if not isinstance(said, Refusal):
                break
            short, more = said, min(said.left or 0, more - 1)
        return short

    async def _overdraw(self, chain: Chain, account: str, until: int) -> Chain | None:
        """The chain with the overdraft of that account in its place; None if there is none."""
        if self.policy.over != "overdraft" or owner_of(split_account(account)[0]):
            return None
        answered: Answered = asyncio.get_running_loop().create_future()
        self._courier.world.spawn(self._open(account, answered), f"{self._courier.topic}.overdraft")
        overdraft = await self._wait(answered, until)
        if overdraft is None:
            raise Unknown(f"the overdraft of {account} could not be opened: {self._chains.why}")
        return tuple(overdraft if each == account else each for each in chain) if overdraft else None

    async def _open(self, account: str, answered: Answered) -> None:
        try:
            _resolve(answered, await self._chains.open_overdraft(account))
        except StoreError as error:
            self._chains.why = error
            _resolve(answered, None)

    async def _ask(self, hold: Hold, chain: Chain, amount: int, until: int) -> Said:
        answered: Answered = asyncio.get_running_loop().create_future()

        def hear(said: Said) -> None:
            _resolve(answered, said)

        number = self._courier.grow(hold, chain, amount, hear)
        try:
            said: Said | None = await self._wait(answered, until)
        except asyncio.CancelledError:
            self._courier.cancel(number)
            raise
        self._courier.cancel(number)
        if said is None:
            raise Unknown(
                f"{amount} more of {chain[0]} are not here, and not everybody answered in time: say it again "
                "later"
            )
        return said

    async def _wait(self, answered: Answered, until: int) -> Any:
        """None where it is not known in time."""
        deadline = self._deadlines.add(until, lambda _: _resolve(answered, None), None)
        try:
            return await answered
        finally:
            deadline.done = True


def _resolve(answered: Answered, said: Any) -> None:
    if not answered.done():
        answered.set_result(said)
