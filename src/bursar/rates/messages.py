"""What controllers and servers of a rate resource say to one another.

controller                      server
   |<---------- Started -----------|     once, when it comes up: ask me
   |------------ Poll ------------>|     each interval, and to fence after a take-over
   |<---------- Report ------------|     demand, capacity, what was dispatched
   |------------ Grant ----------->|     absolute allowances; answers one report
   |<------------ Ack -------------|     what the server's allowances now are
   |<---------- Wanted ------------|     a tenant asks where it has no tokens: place anew
   |<----------- Left -------------|     once, when it goes: what it used, and that this is all

leader                          candidates
   |----------- Leading ---------->|     with every beat
   |<---------- Missing ---------->|     to all: I have not heard this leader, have you?
   |<---------- Hearing ---------->|     from each: whether it has
"""

from __future__ import annotations

import msgspec

from bursar.world import Message

Life = tuple[str, int]
"""One life of a server: its name and its incarnation."""

UNBOUNDED = 2**62
"""The allowance of a tenant without a limit."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Which part a server has of the limit of a tenant that nobody has asked for yet: number `place` of
    `of` parts; of 0, none. With zones, of the part that its zone has: number `zone` of `zones`."""

    place: int
    of: int
    zone: int = 0
    zones: int = 0


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


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tenant at one server, in the present period.

    pending     tokens that its waiting requests need now
    arrived     tokens that arrived since the last full report
    backlogged  its queue was hardly ever empty since then: it wants whatever the server can do
    front       tokens that the first of its waiting requests needs: they are of use only together
    front_ns    how long that one has been the first
    """

    tenant: str
    allowance: int
    dispatched: int
    pending: int
    arrived: int
    backlogged: bool
    front: int = 0
    front_ns: int = 0


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """Many of them, as columns (`columns`) in the order of `Row`: first of tenants that have a number in the
    controller's list `roll`, then of those that are named. `whole`: among them is whoever has other than its
    part at the server; else only who asks or was served."""

    roll: int
    whole: bool
    numbers: bytes
    names: tuple[str, ...]
    columns: tuple[bytes, ...]


class Report(Message, frozen=True):
    """A server as it is at `sent_at`, by its own clock, asked at `asked_at`, by the controller's.
    `rows` is None when nothing moved beyond the threshold since the last full report to this
    controller, sent at `stands_at`: it still stands, for those who got it. `capacity` is what the server
    can do, in tokens a second, by the policy or as it has found out. `lives` are earlier ones
    of this server that are over, and whose part of `period` is in the rows, as dispatched. A tenant that
    is not in whole rows has what `part` says. In `over_ns` from `sent_at` every token of `period` has ended,
    wherever it is; None if this server does not know."""

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
    capacity: float
    rows: Rows | None
    lives: tuple[int, ...] = ()
    part: Part = NO_PART
    over_ns: int | None = None


class Allowance(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The most a tenant may dispatch at a server in a period, how much of that comes first, and the
    server's share of the tenant's pace, in tokens a period (0: it has none)."""

    tenant: str
    allowance: int
    priority: int
    pace: int = 0


class Allowances(msgspec.Struct, frozen=True, array_like=True):
    """Those of all tenants, as columns (`columns`). A tenant has a number in the leader's list `roll`, which
    grows: `known` of its names the server has acknowledged, these are those after them. By number, `levels`
    and `paces` are the same for every server; UNNAMED as a level is a tenant that has its part. Those of
    `numbers` have other columns at this server."""

    roll: int
    known: int
    names: tuple[str, ...]
    levels: bytes
    paces: bytes
    numbers: bytes
    allowances: bytes
    priorities: bytes
    row_paces: bytes


NO_ALLOWANCES = Allowances(0, 0, (), b"", b"", b"", b"", b"", b"")


class Grant(Message, frozen=True):
    """Allowances for one life of one server, absolute: a tenant without a level has what `part` says, by
    the limits that the period was opened with: those of the terms named `terms`. They end `time_left_ns`
    after the server's own `sent_at`, echoed from the report that this answers. `over_ns` after it was
    sent, by any clock, every token of the period has ended, wherever it is: then the server may begin the
    next one, if it has heard nothing of it, with its `standing` part of every tenant's limit. `short` are
    tokens of reservations that fit on no server, by tenant: for people who ask here."""

    epoch: int
    sequence: int
    incarnation: int
    period: int
    sent_at: int
    time_left_ns: int
    rows: Allowances
    part: Part = NO_PART
    terms: str = ""
    over_ns: int = 0
    standing: Part = NO_PART
    short: tuple[tuple[str, int], ...] = ()


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


class Wanted(Message, frozen=True):
    """A tenant that asked for nothing lately asks at this server, where it has no tokens: whoever leads
    places tokens anew now, not with the next round."""

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


class Leading(Message, frozen=True):
    """The leader of this epoch is well."""

    epoch: int


class Missing(Message, frozen=True):
    """The leader of this epoch was not heard here lately. Is it at your place?"""

    epoch: int


class Hearing(Message, frozen=True):
    """Whether the leader of this epoch, or of a later one, was heard here lately."""

    epoch: int
    heard: bool


ToServer = Poll | Grant
ToController = Report | Ack | Started | Wanted | Left | Leading | Missing | Hearing


class State(msgspec.Struct, frozen=True):
    """What the store holds: the one compare-and-set by which a period opens.

    servers   the lives of servers that may hold tokens of the period
    terms     names the terms that the period was opened with: whoever leads with others makes no tokens of it
    standing  the lives that have a part each, in this order, of every tenant's limit in the *next* period:
              they may begin it without a word from anybody, under these terms
    tied      of these, the servers on the leader's own node: what ends the one ends the other, so they
              begin nothing alone
    """

    epoch: int
    leader: str
    period: int
    servers: tuple[Life, ...]
    terms: str = ""
    standing: tuple[Life, ...] = ()
    tied: tuple[str, ...] = ()
