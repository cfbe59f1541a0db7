"""One line of a history, whoever wrote it. `docs/storm.md` has the fields by writer."""

from __future__ import annotations

from sys import intern
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

ACQUIRING = frozenset({"acquire", "try_acquire", "claim", "acquire_all", "probe"})
"""They end in a grant or in a reason, within their `wait_ms` and a quarter of a second."""

ENDING = frozenset({"settle", "release", "cancel"})

CHANGES = frozenset({"apply", "rollback", "tenant", "join", "leave", "topup", "fence", "force_release"})
"""What an operator does that moves tokens or terms."""

OTHERS = frozenset(
    {
        *CHANGES,
        *("token", "revoke", "scrape", "ready", "show"),
        *("fault", "heal", "stood", "starved", "write"),
        *("connect", "close", "stopped", "harness", "note"),
        "more",  # what was asked for besides, by whoever holds a claim
    }
)
"""Lines that are no operation of a client."""


class HistoryError(Exception):
    """A run that cannot be judged: it says which line of which file, and why."""


class Answer(msgspec.Struct, gc=False):
    is_: str = msgspec.field(name="is")
    id: str | None = None
    period: int | None = None
    amount: int | None = None
    fence: dict[str, int] | None = None
    fallback: str | None = None
    replayed: bool | None = False
    used: int | None = None
    limit: int | None = None
    remaining: int | None = None
    retry_after: float | None = None
    reason: str | None = None
    why: str | None = None
    node: str | None = None
    """Who answered, where the client knows."""
    lost: bool = False
    """Nothing came back at all: the client's own timeout, or its connection broke."""
    task: Any = None
    """What was said of a task: a word, or a table with `state` and `outcome`."""


class Line(msgspec.Struct, gc=False):
    op: str
    at: int = 0
    end: int | None = None
    n: int | None = None
    of: str | None = None
    """Of a `begin`: the operation that was begun."""
    part_of: int | None = None
    """Of what was granted of one resource by an `acquire_all`: the number of that line."""
    via: str | None = None
    put: int | None = None
    """Over HTTP: when the node that answered was turned to."""
    in_vain: int = 0
    """Over HTTP: how many nodes were turned to before it."""
    nodes: list[str] | None = None
    resource: str | None = None
    tenant: str | None = None
    amount: int | None = None
    wait_ms: float | None = None
    key: str | None = None
    names: list[str] | None = None
    grant: int | None = None
    id: str | None = None
    used: int | dict[str, int] | None = None
    """What a settlement says; for several at once a number that could be any one's, or by resource."""
    task: int | None = None
    """Of `wait_for` and `cancel`: the number of the line that submitted it."""
    token: str | None = None
    answer: Answer | None = None
    # a guard's
    name: str | None = None
    fence: int | None = None
    who: str | None = None
    accepted: bool | None = None
    # an operator's
    version: int | None = None
    to: int | None = None
    text: str | None = None
    terms: dict[str, Any] | UnsetType | None = UNSET
    node: str | None = None
    ok: bool | None = None
    ready: bool | None = None
    what: str | None = None
    """Of a note: "exit" (a node ended by itself), "hung" (a client did not end), "damage",
    "not ready" (a node that was started, for 20 s)."""
    noticed: bool | None = None
    why: str | None = None
    scopes: list[dict[str, list[str]]] | None = None
    figures: dict[str, Any] | None = None
    # the nemesis'
    fault: str | None = None
    targets: list[str] | None = None
    jump_ms: float | None = None
    # the witness'
    ns: int | None = None
    # where it stands; filled in by the reader
    file: str = ""
    line: int = 0

    @property
    def done_at(self) -> int:
        """The last moment that the line itself speaks of."""
        return self.at if self.end is None else self.end


_DECODER = msgspec.json.Decoder(Line)


def read_line(raw: bytes) -> Line:
    """Raises ValueError or RecursionError, which says what is wrong with it."""
    return _DECODER.decode(raw)


def share_texts(line: Line, nodes: dict[tuple[str, ...], list[str]]) -> Line:
    """Names come again in every line: one copy of each is enough for a million lines. `nodes` are the
    lists that were seen before."""
    line.op = intern(line.op)
    line.resource = intern(line.resource) if line.resource else line.resource
    line.tenant = intern(line.tenant) if line.tenant else line.tenant
    line.via = intern(line.via) if line.via else line.via
    if line.nodes is not None:
        line.nodes = nodes.setdefault(tuple(line.nodes), line.nodes)
    if line.answer is not None:
        line.answer.is_ = intern(line.answer.is_)
    return line
