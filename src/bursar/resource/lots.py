"""Lots: tokens of one tenant, charged ahead, in one place, good until a time.

Whoever decides keeps an `Ahead`: what is out there, by tenant and by place, so that the rules of
lots can be kept. Whoever asks keeps a `Lot` for each tenant: spending from it is a decrement.
"""

from __future__ import annotations

from heapq import heappop, heappush

from bursar.resource.deadlines import Deadline
from bursar.resource.tickets import Granted
from bursar.world import MILLISECOND_NS

PLACE_NS = 5 * MILLISECOND_NS
"""The most that may be out ahead at one server or target, in time at its capacity: the stated error of
pacing, weights and reservations."""


class Lot:
    """A lot in the hands of whoever spends it.

    left      tokens that can still be spent
    returned  tokens that came back to it, settled for less
    requests  grants made from it
    told      tokens that the kind knows to be spent
    """

    __slots__ = ("deadline", "granted", "left", "requests", "returned", "size", "tenant", "told", "until")

    deadline: Deadline

    def __init__(self, tenant: str, granted: Granted) -> None:
        self.tenant = tenant
        self.granted = granted
        self.size = self.left = granted.ahead
        self.until = granted.until
        self.requests = self.returned = self.told = 0

    @property
    def spent(self) -> int:
        """Tokens granted from it, those that came back to it included."""
        return self.size - self.left + self.returned

    def tell(self) -> int:
        """Tokens granted from it since the last call."""
        news = self.spent - self.told
        self.told += news
        return news


class Issue:
    """A lot as whoever handed it out knows it: `left` is what may still be spent of it somewhere."""

    __slots__ = ("held_by", "left", "period", "place", "tenant", "until")

    def __init__(self, tenant: str, place: str, held_by: str, left: int, until: int, period: int) -> None:
        self.tenant = tenant
        self.place = place
        self.held_by = held_by
        self.left = left
        self.until = until
        self.period = period


class Ahead:
    """What is out ahead of use. Invariants: the tokens out of one tenant never pass what `room` was
    told for it, nor those at one place what it was told for the place; a lot that ended counts no
    longer; and one holder has at most one lot of a tenant at a place."""

    def __init__(self) -> None:
        self._of_tenant: dict[str, int] = {}
        self._at_place: dict[str, int] = {}
        self._issues: dict[tuple[str, str, str], Issue] = {}
        self._ends: list[tuple[int, int, Issue]] = []
        self._issued = 0

    def room(self, now: int, tenant: str, place: str, tenant_max: int, place_max: int) -> int:
        """How many more may go out: half of what there is room for, so that others find some too."""
        self.expire(now)
        room = min(
            tenant_max - self._of_tenant.get(tenant, 0),
            place_max - self._at_place.get(place, 0),
        )
        return max(0, (room + 1) // 2)

    def issue(self, tenant: str, place: str, held_by: str, tokens: int, until: int, period: int) -> Issue:
        """Count a lot that goes out. What this holder had of the tenant here before is over."""
        before = self._issues.get((tenant, place, held_by))
        if before is not None:
            self.end(before)
        issue = Issue(tenant, place, held_by, tokens, until, period)
        self._issues[tenant, place, held_by] = issue
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + tokens
        self._at_place[place] = self._at_place.get(place, 0) + tokens
        self._issued += 1
        heappush(self._ends, (until, self._issued, issue))
        return issue

    def spend(self, issue: Issue, tokens: int) -> None:
        """So many of it were spent, or came back: they are out no longer."""
        gone = min(tokens, issue.left)
        issue.left -= gone
        _reduce(self._of_tenant, issue.tenant, gone)
        _reduce(self._at_place, issue.place, gone)

    def end(self, issue: Issue) -> None:
        """Nothing more is spent of it."""
        self.spend(issue, issue.left)
        key = (issue.tenant, issue.place, issue.held_by)
        if self._issues.get(key) is issue:
            del self._issues[key]

    def expire(self, now: int) -> None:
        while self._ends and (self._ends[0][0] <= now or not self._ends[0][2].left):
            self.end(heappop(self._ends)[2])

    def of_tenant(self, tenant: str) -> list[Issue]:
        """The lots of a tenant that are out, to be recalled."""
        return [issue for issue in self._issues.values() if issue.tenant == tenant]

    @property
    def out(self) -> int:
        """All that is out."""
        return sum(self._at_place.values())


def _reduce(counts: dict[str, int], name: str, tokens: int) -> None:
    left = counts.get(name, 0) - tokens
    if left:
        counts[name] = left
    else:
        counts.pop(name, None)
