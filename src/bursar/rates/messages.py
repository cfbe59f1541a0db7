"""What controllers and servers of a rate resource say to one another.

controller                      server
   |<---------- Started -----------|     once, when it comes up: ask me
   |------------ Poll ------------>|     each interval, and to fence after a take-over
   |<---------- Report ------------|     demand, capacity, what was dispatched
   |------------ Grant ----------->|     absolute allowances; answers one report
   |<------------ Ack -------------|     what the server's allowances now are
   |<----------- Left -------------|     once, when it goes: what it used, and that this is all
"""

from __future__ import annotations

import msgspec

from bursar.world import Message

UNBOUNDED = 2**62
"""The allowance of a tenant without a limit."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Which part a server has of the limit of a tenant that nobody has asked for yet: number `place` of
    `of` parts; of 0, none."""

    place: int
    of: int


NO_PART = Part(0, 0)


class Poll(Message, frozen=True):
    """Report to me. A higher epoch than the server has seen also fences it: from then on it takes
    nothing from a lower one. `full` asks for every row, not only for news. `asked_at`, by the
    controller's clock, comes back in the report: a late answer is not taken for a fresh one.
    `period` is the present one: a server that has come back looks up what it held of that."""

    epoch: int
    asked_at: int
    full: bool
    period: int


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A tenant at one server, in the present period.

    pending     tokens that its waiting requests need now
    arrived     tokens that arrived since the last full report
    backlogged  its queue was hardly ever empty since then: it wants whatever the server can do
    """

    tenant: str
    allowance: int
    dispatched: int
    pending: int
    arrived: int
    backlogged: bool


class Report(Message, frozen=True):
    """A server as it is at `sent_at`, by its own clock, asked at `asked_at`, by the controller's.
    `rows` is None when nothing moved beyond the threshold since the last full report to this
    controller, sent at `stands_at`: it still stands, for those who got it. `lives` are earlier ones
    of this server that are over, and whose part of `period` is in the rows, as dispatched. A tenant that
    is not in the rows has what `part` says."""

    server: str
    incarnation: int
    asked_at: int
    sent_at: int
    stands_at: int
    epoch: int
    sequence: int
    period: int
    time_left_ns: int
    seen_ns: int
    served: int
    busy_ns: int
    rows: tuple[Row, ...] | None
    lives: tuple[int, ...] = ()
    part: Part = NO_PART


class Allowance(msgspec.Struct, frozen=True, array_like=True):
    """The most a tenant may dispatch at a server in a period, how much of that comes first, and the
    server's share of the tenant's pace, in tokens a period (0: it has none)."""

    tenant: str
    allowance: int
    priority: int
    pace: int = 0


class Grant(Message, frozen=True):
    """Allowances for one life of one server, absolute: a tenant without a row has what `part` says, by
    the limits that the period was opened with: those of the terms named `terms`. They end `time_left_ns`
    after the server's own `sent_at`, echoed from the report that this answers."""

    epoch: int
    sequence: int
    incarnation: int
    period: int
    sent_at: int
    time_left_ns: int
    rows: tuple[Allowance, ...]
    part: Part = NO_PART
    terms: str = ""


class Ack(Message, frozen=True):
    """Grant (epoch, sequence) was taken as it stands, but for the tenants in `raised`, which had
    dispatched more than it allows already: their allowance is what they dispatched."""

    server: str
    incarnation: int
    epoch: int
    sequence: int
    period: int
    raised: tuple[tuple[str, int], ...]


class Started(Message, frozen=True):
    """A server has come up and has no tokens: whoever leads asks it now, not with the next round."""

    server: str


class Left(Message, frozen=True):
    """This life of the server dispatches nothing more, ever. Of `period`, the newest that it had tokens
    of, it has dispatched what `rows` say, by tenant; some of it may be used, by whoever has it ahead of use,
    for `time_left_ns` more. Told to every node, because each may come to lead."""

    server: str
    incarnation: int
    period: int
    time_left_ns: int
    rows: tuple[tuple[str, int], ...]


ToServer = Poll | Grant
ToController = Report | Ack | Started | Left


class State(msgspec.Struct, frozen=True):
    """What the store holds: the one compare-and-set by which a period opens.

    servers   the lives of servers that may hold tokens of the period
    terms     names the terms that the period was opened with: whoever leads with others makes no tokens of it
    """

    epoch: int
    leader: str
    period: int
    servers: tuple[tuple[str, int], ...]
    terms: str = ""
