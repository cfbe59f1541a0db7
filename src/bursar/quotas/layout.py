"""Where a quota keeps what its nodes agree on.

/quotas/RESOURCE/ledgers/LEDGER       generation of that ledger; stays when its node is away
/quotas/RESOURCE/fenced/LEDGER        written off until its own ledger comes back
/quotas/RESOURCE/live/LEDGER:NUMBER   ephemeral: its node is up; a lower number is senior
/quotas/RESOURCE/slots/LEDGER/N       ephemeral: the ledger that has LEDGER for a parent
/quotas/RESOURCE/accounts             the horizon: accounts of windows that ended by then are forgotten
/quotas/RESOURCE/accounts/AB          a shard; set anew when an account in it was changed (not: opened)
/quotas/RESOURCE/accounts/AB/TENANT   a TenantRecord: its windows, and where the units of each come from
/quotas/RESOURCE/news                 set anew when any account was changed: every node hears of it at once
/quotas/RESOURCE/heard/LEDGER         the version of the news that its node has carried out, durably
/quotas/RESOURCE/keys/ABC/DIGEST      a HomeRecord: the hold that stands for a key

RESOURCE is followed by "!EPOCH" in a store that was adopted: what it says of earlier epochs is not all
that there was, so accounts and ledgers are entered anew (`adoption`).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from urllib.parse import quote, unquote

import msgspec

from bursar.decoding import DECODE_ERRORS, is_number
from bursar.errors import FormatError

Mints = list[tuple[str, int]]

SENIORITY_DIGITS = 10
SHARD_DIGITS = 2
"""256 shards: 100,000 tenants are 400 to a shard, which is listed in one small answer."""

EPOCH_MARK = "!"
"""Not in a quoted name."""

ELSEWHERE = ""
"""Stands for a ledger in a list of mints: units that came into being in an earlier epoch of the store, and
are wherever the ledgers of that time have them."""

FOUND = "*"
"""Likewise: units that the audit found beyond all that was minted, and an operator let stand."""


class AccountRecord(msgspec.Struct):
    """An account as the store has it.

    limit   the policy's, when it was last carried out: a policy that says otherwise was changed
    mints   [[ledger, amount], ...], only added to; they sum to the limit and the top-ups since
    fenced  why nothing is granted of it; "" if nothing is wrong
    warned  the highest percentage that was told to have been reached
    """

    limit: int
    mints: Mints
    fenced: str = ""
    warned: int = 0


class TenantRecord(msgspec.Struct):
    """A tenant's accounts, by the names of their windows ("" where there are none)."""

    windows: dict[str, AccountRecord] = {}


class HomeRecord(msgspec.Struct, frozen=True):
    """A key as the store has it.

    ledger, hold   its home, and the number of the hold there: no two claims are the same
    terms          a digest of the tenant and the amount that it was used for
    until_s        when it may be swept if its home was written off, in seconds since 1970
    """

    ledger: str
    hold: int
    terms: str
    until_s: int


class Layout:
    """The paths of one resource, in one epoch of the store."""

    def __init__(self, resource: str, epoch: int = 1) -> None:
        self.resource = resource
        self.root = f"/quotas/{quote(resource, safe='')}" + (f"{EPOCH_MARK}{epoch}" if epoch > 1 else "")
        self.ledgers = f"{self.root}/ledgers"
        self.fenced = f"{self.root}/fenced"
        self.live = f"{self.root}/live"
        self.accounts = f"{self.root}/accounts"
        self.news = f"{self.root}/news"
        self.heard = f"{self.root}/heard"
        self.keys = f"{self.root}/keys"

    def folders(self) -> tuple[str, ...]:
        return (self.ledgers, self.fenced, self.live, self.accounts, self.news, self.heard, self.keys)

    def slots(self, ledger: str) -> str:
        return f"{self.root}/slots/{quote(ledger, safe='')}"

    def ledger(self, ledger: str) -> str:
        return f"{self.ledgers}/{quote(ledger, safe='')}"

    def fence(self, ledger: str) -> str:
        return f"{self.fenced}/{quote(ledger, safe='')}"

    def hearer(self, ledger: str) -> str:
        return f"{self.heard}/{quote(ledger, safe='')}"

    def shard(self, tenant: str) -> str:
        return f"{self.accounts}/{digest(tenant)[:SHARD_DIGITS]}"

    def tenant(self, tenant: str) -> str:
        return f"{self.shard(tenant)}/{quote(tenant, safe='')}"

    def key(self, key: str) -> str:
        """In one of 4,096 folders, which together take the full tables of some 35 nodes (CHILDREN_MAX)."""
        name = digest(key)
        return f"{self.keys}/{name[:3]}/{name[3:]}"


def digest(*parts: object) -> str:
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def read_home(data: bytes) -> HomeRecord:
    try:
        return msgspec.json.decode(data, type=HomeRecord)
    except DECODE_ERRORS as error:
        raise FormatError(f"a key in the store names no hold: {error}") from error


def write_home(record: HomeRecord) -> bytes:
    return msgspec.json.encode(record)


def read_name(node: str) -> str:
    """The ledger or tenant that a node of the store is named for."""
    return unquote(node)


def read_live(node: str) -> tuple[int, str]:
    """(seniority, ledger) of a node under `live`. Raises FormatError."""
    digits = node[-SENIORITY_DIGITS:]
    if not is_number(digits):
        raise FormatError(f"{node[:100]!r} in the store is no ledger that is up: another program's data?")
    return int(digits), unquote(node[: -SENIORITY_DIGITS - 1])


def write_live(layout: Layout, ledger: str) -> str:
    """The path to create, to which the store adds the seniority."""
    return f"{layout.live}/{quote(ledger, safe='')}:"


def is_ledger(name: str) -> bool:
    """Whether the one that a mint names is a ledger, which takes it in."""
    return name not in (ELSEWHERE, FOUND)


def read_tenant(data: bytes) -> TenantRecord:
    try:
        return msgspec.json.decode(data, type=TenantRecord)
    except DECODE_ERRORS as error:
        raise FormatError(f"a tenant in the store has no accounts with lists of mints: {error}") from error


def write_tenant(record: TenantRecord) -> bytes:
    return msgspec.json.encode(record)


def split_evenly(units: int, ledgers: Sequence[str]) -> Mints:
    """An account's first mints: as even as whole units allow."""
    each, more = divmod(units, len(ledgers))
    return [(ledger, each + (place < more)) for place, ledger in enumerate(ledgers)]
