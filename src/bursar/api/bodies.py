"""What is sent and answered, as structs: the routes read and write them, the OpenAPI document shows them.

Times are seconds, amounts whole tokens. A member that is not known is refused, never passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from bursar.resource.checks import AMOUNT_MAX
from bursar.world import NAME_MAX_BYTES

WAIT_MAX_S = 60.0
TTL_MIN_S, TTL_MAX_S, TTL_S = 1.0, 3600.0, 60.0
HOLD_MAX_S = 30 * 86_400.0
NAMES_MAX = 1000
PRIORITY_MAX = 1000
RETRIES_MAX = 1000
PAYLOAD_MAX = 48 * 1024
PAGE_MAX = 10_000
NOTE_MAX = 500
TEXT_MAX = 3 * 1024 * 1024
TENANTS_MAX = 10_000

PRINTABLE = r"^[^\x00-\x1f\x7f]+$"

Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES, pattern=PRINTABLE)]
Tenant = Annotated[Name, Meta(description="who asks", examples=["acme"])]
Amount = Annotated[int, Meta(ge=1, le=AMOUNT_MAX, description="tokens")]
Used = Annotated[int, Meta(ge=0, le=AMOUNT_MAX, description="tokens that were used; the rest goes back")]
Wait = Annotated[
    float, Meta(ge=0, le=WAIT_MAX_S, description="seconds to wait for it; the answer comes as soon as it can")
]
Ttl = Annotated[
    float,
    Meta(
        ge=TTL_MIN_S,
        le=TTL_MAX_S,
        description="seconds until its holder counts as gone, unless it is renewed",
    ),
]
Hold = Annotated[
    float,
    Meta(
        ge=1,
        le=HOLD_MAX_S,
        description="seconds until a quota's grant that nobody settled counts as used; the policy's if null",
    ),
]
Key = Annotated[Name, Meta(description="the same key is one acquisition, however often it is asked for")]
Priority = Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX, description="higher is granted first")]
Deadline = Annotated[
    float, Meta(ge=0, le=365 * 86_400, description="seconds after which it is not begun any more")
]
Names = Annotated[
    tuple[Name, ...],
    Meta(min_length=1, max_length=NAMES_MAX, description="with :E (exclusive) or :S (shared)"),
]
Terms = Annotated[
    dict[str, Any], Meta(description='as in the policy file: {"limit": "60k/s"}', examples=[{"limit": 1000}])
]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of what is sent."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The base of what is answered."""


# -- acquiring


class Acquire(Body, frozen=True, kw_only=True):
    tenant: Tenant
    amount: Amount = 1
    wait: Wait = 0.0
    key: Key | None = None
    ttl: Ttl = TTL_S
    hold: Hold | None = None


class Claim(Body, frozen=True, kw_only=True):
    tenant: Tenant
    names: Names
    wait: Wait = 0.0
    key: Key | None = None
    priority: Priority = 0
    ttl: Ttl = TTL_S


class Settle(Body, frozen=True, kw_only=True):
    used: Used


class Settlement(Body, frozen=True, kw_only=True):
    id: Annotated[Name, Meta(description="the grant's settle_id")]
    used: Used | None = None


class Renew(Body, frozen=True, kw_only=True):
    ttl: Ttl = TTL_S


class Extend(Body, frozen=True, kw_only=True):
    hold: Hold


class Spend(Body, frozen=True, kw_only=True):
    used: Annotated[
        int,
        Meta(ge=0, le=AMOUNT_MAX, description="tokens that were used up to now, so saying it twice is once"),
    ]


class Granted(Reply, frozen=True, kw_only=True):
    """A grant that is held. What is not known is null."""

    id: Annotated[str, Meta(description="names it in /v1/grants/{id}; a secret of whoever asked")]
    resource: str
    tenant: str
    amount: int
    expires_in: Annotated[float, Meta(description="seconds until its holder counts as gone")]
    settle_id: Annotated[str | None, Meta(description="settles it at any node, also after a restart")] = None
    period: Annotated[int, Meta(description="the period it was charged to; 0 for kinds without")] = 0
    fence: Annotated[
        Mapping[str, str],
        Meta(description="of a claim: the phase of each name, a 64-bit number in decimal digits"),
    ] = {}  # not a JSON number: JavaScript would round it, and two holders' fences would be equal
    fallback: Annotated[str | None, Meta(description="shadow: it would have been refused")] = None
    replayed: Annotated[bool, Meta(description="the key was used before: this is that acquisition")] = False
    used: Annotated[
        int | None, Meta(description="what was said to be used; of a replayed one, what was used then")
    ] = None
    limit: int | None = None
    remaining: int | None = None
    reset_after: Annotated[float | None, Meta(description="seconds until the limit begins anew")] = None


# -- tasks


class Submit(Body, frozen=True, kw_only=True):
    tenant: Tenant
    names: Names
    payload: Annotated[str, Meta(max_length=PAYLOAD_MAX, description="for whoever does the work")] = ""
    key: Key | None = None
    priority: Priority = 0
    deadline: Deadline | None = None
    retries: Annotated[
        int, Meta(ge=0, le=RETRIES_MAX, description="how many more times it is tried after it failed")
    ] = 0
    backoff: Annotated[
        float,
        Meta(
            ge=0, le=3600, description="seconds before the first of these; each next pause is twice as long"
        ),
    ] = 1.0


class Submitted(Reply, frozen=True, kw_only=True):
    id: str


class Task(Reply, frozen=True, kw_only=True):
    id: str
    tenant: str
    state: str
    needs: tuple[str, ...]
    outcome: str | None = None
    priority: int = 0
    attempt: int = 0
    holder: str = ""
    claim: Annotated[bool, Meta(description="a claim, held by code that asked, not a task")] = False
    result: Annotated[str, Meta(description="what it returned; of one that failed, the traceback")] = ""
    function: Annotated[str, Meta(description="what is called, where it is a function's call")] = ""
    retries: int = 0
    failures: Annotated[int, Meta(description="how often it failed")] = 0
    failure: Annotated[str, Meta(description="how the last try failed, of one that is tried again")] = ""
    submitted: Annotated[float, Meta(description="seconds since 1970")] = 0.0
    not_before: Annotated[float, Meta(description="when it is tried again; 0: as soon as it can be")] = 0.0
    ended: Annotated[float, Meta(description="seconds since 1970; 0: it is not over")] = 0.0
    alive: Annotated[bool | None, Meta(description="running: whether whoever does it is still there")] = None
    note: Annotated[str, Meta(description="running: how far it says it is")] = ""


class Tasks(Reply, frozen=True, kw_only=True):
    tasks: tuple[Task, ...]
    more: Annotated[bool, Meta(description="there are more than were asked for")] = False


class Cancelled(Reply, frozen=True, kw_only=True):
    id: str
    outcome: Annotated[
        str,
        Meta(description='how it ended; "asked": it runs, was asked to stop, and is not begun again'),
    ]


class WaitForTasks(Body, frozen=True, kw_only=True):
    ids: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=NAMES_MAX)]
    count: Annotated[int, Meta(ge=1, le=NAMES_MAX, description="answer when so many are over")] | None = None
    wait: Wait = 0.0


class Over(Reply, frozen=True, kw_only=True):
    """A task that is over; outcome null: it is not known, or was over long ago."""

    id: str
    outcome: str | None = None


class TasksOver(Reply, frozen=True, kw_only=True):
    over: tuple[Over, ...]
    more: Annotated[bool, Meta(description="some are not over yet")] = False


class Why(Reply, frozen=True, kw_only=True):
    sentences: tuple[str, ...]


# -- resources, nodes


class Resource(Reply, frozen=True, kw_only=True):
    name: str
    kind: str
    shadow: bool
    ready: bool
    keys: bool
    names: bool
    settles: bool


class Resources(Reply, frozen=True, kw_only=True):
    resources: tuple[Resource, ...]


class Node(Reply, frozen=True, kw_only=True):
    name: str
    address: str
    version: Annotated[int, Meta(description="of the policy that it runs")]
    build: str
    problem: Annotated[str, Meta(description="why it does not run a newer policy; empty if it does")]


class Nodes(Reply, frozen=True, kw_only=True):
    nodes: tuple[Node, ...]


# -- tenants, policy


class SetTenants(Body, frozen=True, kw_only=True):
    """Null removes a tenant."""

    tenants: Annotated[dict[Name, Terms | None], Meta(min_length=1, max_length=TENANTS_MAX)]


class TenantSet(Reply, frozen=True, kw_only=True):
    version: Annotated[int, Meta(description="of the policy's text, which did not change")]
    changed: int


class TenantShown(Reply, frozen=True, kw_only=True):
    tenant: str
    terms: dict[str, Any]
    source: Annotated[
        str, Meta(description="tenant: set by itself; policy: listed in the text; template: by a pattern")
    ]


class TenantPage(Reply, frozen=True, kw_only=True):
    tenants: Annotated[dict[str, dict[str, Any]], Meta(description="those that were set by themselves")]
    next: Annotated[int | None, Meta(description="the page to go on with; null at the end")] = None


class PolicyText(Body, frozen=True, kw_only=True):
    text: Annotated[str, Meta(min_length=1, max_length=TEXT_MAX, description="TOML")]
    note: Annotated[str, Meta(max_length=NOTE_MAX, description="for the history")] = ""


class Rollback(Body, frozen=True, kw_only=True):
    number: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class PolicyVersion(Reply, frozen=True, kw_only=True):
    number: int
    by: str
    at: Annotated[float, Meta(description="seconds since 1970")]
    origin: str
    note: str
    text: Annotated[str | None, Meta(description="left out of lists")] = None


class PolicyVersions(Reply, frozen=True, kw_only=True):
    versions: tuple[PolicyVersion, ...]


class PolicyChange(Reply, frozen=True, kw_only=True):
    key: str
    before: str
    after: str
    possible: bool
    why: str


class PolicyProposal(Reply, frozen=True, kw_only=True):
    possible: bool
    expected: Annotated[int, Meta(description="the version that it would follow: for If-Match")]
    changes: tuple[PolicyChange, ...]
    problems: tuple[str, ...]


class UsageRow(Reply, frozen=True, kw_only=True):
    tenant: str
    begin: Annotated[str, Meta(description="of the window, in UTC; empty where there are none")]
    end: str
    unit: str
    limit: int
    used: int
    adjusted: Annotated[int, Meta(description="by hand; credit notes are negative")]
    billed: Annotated[int, Meta(description="used and adjusted")]
    held: Annotated[int, Meta(description="reserved, and not settled yet")]
    written_off: Annotated[int, Meta(description="in ledgers that are lost: whether used is not known")]
    complete: Annotated[bool, Meta(description="whether all nodes answered")]
    final: Annotated[bool, Meta(description="whether the window is over and closed")]


class UsagePage(Reply, frozen=True, kw_only=True):
    rows: tuple[UsageRow, ...]
    next: Annotated[int | None, Meta(description="go on with `after`; null: that was the last page")] = None


class BalanceRow(Reply, frozen=True, kw_only=True):
    tenant: str
    account: str
    unit: str
    limit: int
    used: int
    held: int
    remaining: int
    rate: Annotated[float, Meta(description="used a second, at present")]
    ends_in_s: Annotated[int | None, Meta(description="until its window ends")] = None
    runs_out_in_s: Annotated[float | None, Meta(description="at the present rate")] = None
    forecast: Annotated[int | None, Meta(description="used by the window's end, at the present rate")] = None
    complete: Annotated[bool, Meta(description="whether all nodes answered")]


class BalancePage(Reply, frozen=True, kw_only=True):
    rows: tuple[BalanceRow, ...]
    next: Annotated[int | None, Meta(description="go on with `after`; null: that was the last page")] = None


class Adjust(Body, frozen=True, kw_only=True):
    account: Annotated[Name, Meta(description="a tenant, or with the begin of a window: acme@2026-11-01")]
    amount: Annotated[int, Meta(description="a credit note is negative")]
    reason: Annotated[str, Meta(min_length=1, max_length=500)]


class AdjustDone(Reply, frozen=True, kw_only=True):
    account: str
    adjusted: Annotated[int, Meta(description="all that this window was adjusted by")]
    silent: Annotated[tuple[str, ...], Meta(description="ledgers that will hear of it later")]


class Announce(Body, frozen=True, kw_only=True):
    tenant: Name
    tokens: Annotated[int, Meta(ge=0, le=2**52)]
    after: Annotated[float, Meta(ge=0, le=86_400, description="seconds from now on until it begins")] = 0.0
    lasting: Annotated[float, Meta(gt=0, le=86_400, description="seconds for which it is waited for")] = 60.0


class Announced(Reply, frozen=True, kw_only=True):
    tokens: int
    starts_in: float
    ends_in: float


class Ready(Reply, frozen=True, kw_only=True):
    ready: bool
    not_ready: tuple[str, ...]
    policy_version: Annotated[int, Meta(description="of the policy that the node runs")] = 0
    policy_problem: Annotated[str, Meta(description="why it does not run a newer one")] = ""


class Live(Reply, frozen=True, kw_only=True):
    live: bool
    name: str = ""


class ProblemDocument(Reply, frozen=True, kw_only=True):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    reason: Annotated[
        str | None,
        Meta(description="limit, amount, tenant: refused; usage, denied, missing, conflict, policy, unknown"),
    ] = None
    limit: int | None = None
    remaining: int | None = None
    retry_after: float | None = None
    fallback: str | None = None
    problems: list[dict[str, Any]] | None = None


# -- queries


class ForTenant(Body, frozen=True, kw_only=True):
    tenant: Tenant


class Count(Body, frozen=True, kw_only=True):
    tenant: Annotated[Name | None, Meta(description="only this tenant's rows")] = None
    most: Annotated[int, Meta(ge=0, le=PAGE_MAX, description="rows of each table")] = 1000


class UsageAsked(Body, frozen=True, kw_only=True):
    tenant: Annotated[Name | None, Meta(description="only this tenant's rows")] = None
    since: Annotated[str, Meta(description="windows that begin from then on: 2026-11-01, in UTC")] = ""
    until: Annotated[str, Meta(description="windows that begin before then")] = ""
    after: Annotated[int, Meta(ge=0, description="what `next` said")] = 0
    most: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="tenants of a page")] = 1000


class BalancesAsked(Body, frozen=True, kw_only=True):
    tenant: Annotated[Name | None, Meta(description="only this tenant's rows")] = None
    after: Annotated[int, Meta(ge=0, description="what `next` said")] = 0
    most: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="tenants of a page")] = 1000


class TaskWait(Body, frozen=True, kw_only=True):
    wait: Annotated[float, Meta(ge=0, le=WAIT_MAX_S, description="seconds to wait until it is over")] = 0.0


class TaskList(Body, frozen=True, kw_only=True):
    most: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 1000
    tenant: Name | None = None
    state: Name | None = None
    of: Annotated[Name, Meta(description="a name that they need")] | None = None
    function: Name | None = None


class DeadList(Body, frozen=True, kw_only=True):
    most: Annotated[int, Meta(ge=1, le=PAGE_MAX)] = 1000


class TaskHistory(Body, frozen=True, kw_only=True):
    most: Annotated[int, Meta(ge=1, le=NAMES_MAX)] = 100
    tenant: Name | None = None
    outcome: Name | None = None
    of: Annotated[Name, Meta(description="a name that they needed")] | None = None
    function: Name | None = None


class TaskCancel(Body, frozen=True, kw_only=True):
    wait: Annotated[
        float, Meta(ge=0, le=WAIT_MAX_S, description="seconds in which one that runs may stop")
    ] = 0.0


class TenantList(Body, frozen=True, kw_only=True):
    page: Annotated[int, Meta(ge=0, le=255, description="0, then what next says")] = 0
    most: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="about so many; pages are whole")] = 1000
