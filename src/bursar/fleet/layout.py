"""Where the fleet's records stand in the store, and what is in them.

/fleet/store                    Identity: which store this is, and the form of all that is in it
/fleet/identity                 Identity as builds from before there were forms read it: sealed for them
/fleet/secret                   what nodes prove themselves with to each other (`bursar.fleet.secret`)
/fleet/policy                   Head: the version in force. Set by every change of terms, so that the
                                node's own version number stands for all of them (`Fleet.guards`)
/fleet/versions/0000000007      Version: who applied it, when, and which chunks its text is made of
/fleet/chunks/DIGEST            a piece of a policy's text, compressed; named by what is in it
/fleet/tenants/RESOURCE         Index: how often each shard below was changed
/fleet/tenants/RESOURCE/SHARD   tenants that were set one by one, hundreds to a node
/fleet/nodes/NAME               NodeRecord, ephemeral: a node that is up
/fleet/members/NAME             Member: a node that was let in
/fleet/tokens/ID                Token: who may do what (`bursar.fleet.rights`)
/fleet/audit/0000000012         Entry: who changed what (`bursar.fleet.audit`)
/fleet/marks/NAME               what the node wrote last, which it keeps too (`bursar.runtime.marks`)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from bursar.decoding import DECODE_ERRORS
from bursar.errors import FormatError, NodeMissingError
from bursar.world import Stat, Store

ROOT = "/fleet"
IDENTITY = f"{ROOT}/store"
BEFORE_FORMS = f"{ROOT}/identity"
SECRET = f"{ROOT}/secret"
HEAD = f"{ROOT}/policy"
VERSIONS = f"{ROOT}/versions"
CHUNKS = f"{ROOT}/chunks"
TENANTS = f"{ROOT}/tenants"
NODES = f"{ROOT}/nodes"
MEMBERS = f"{ROOT}/members"
TOKENS = f"{ROOT}/tokens"
AUDIT = f"{ROOT}/audit"
MARKS = f"{ROOT}/marks"
FOLDERS = (VERSIONS, CHUNKS, TENANTS, NODES, MEMBERS, TOKENS, AUDIT, MARKS)

SHARDS = 256

FORM = 3
"""Of what nodes write for each other, into the store and in messages. Raised when it changes so that an older
build could not go on with it, or would read it otherwise: all nodes of a store are of one form. (What is
only added, with a default, changes no form.)"""

RecordT = TypeVar("RecordT")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The base of what is kept. A field that is added later has a default, so that an older record can
    be read; one that is not known is passed over, so that a newer one can."""


class Identity(Record, frozen=True, kw_only=True):
    """Which store this is. `epoch` is raised when a rebuilt or restored one is adopted, or one of an older
    form, at wall time `since_ns`; `sealed` says where its content was copied to: it is not to be used any
    more."""

    uuid: str
    epoch: int = 1
    since_ns: int = 0
    sealed: str = ""
    form: int = 1


class Head(Record, frozen=True, kw_only=True):
    """`version` of the document, and for each resource with tenants of its own how often they changed."""

    version: int
    tenants: Mapping[str, int] = msgspec.field(default_factory=dict)


class Version(Record, frozen=True, kw_only=True):
    """One version of the policy. `origin`: "apply", or "file" for what a node brought along when it was
    started from a file. `at_ns`: wall time, for people. `schema`: of the language it is written in."""

    number: int
    by: str
    at_ns: int
    origin: str
    digest: str
    chunks: tuple[str, ...]
    schema: int
    note: str = ""


class NodeRecord(Record, frozen=True, kw_only=True):
    """A node that is up: where it listens, which terms it runs, and why it does not run newer ones."""

    name: str
    incarnation: int
    address: str = ""
    http: str = ""
    version: int = 0
    head: int = -1
    schema: int = 0
    build: str = ""
    problem: str = ""


class Member(Record, frozen=True, kw_only=True):
    """A node that may speak as a peer. `by`: the token that let it in."""

    name: str
    at_ns: int
    by: str = ""


class Index(Record, frozen=True, kw_only=True):
    """Of each shard, how often it was changed, and how many tenants it has."""

    changes: tuple[int, ...]
    sizes: tuple[int, ...]


def version_path(number: int) -> str:
    return f"{VERSIONS}/{number:010d}"


def node_path(name: str) -> str:
    return f"{NODES}/{quote_name(name)}"


def member_path(name: str) -> str:
    return f"{MEMBERS}/{quote_name(name)}"


def mark_path(name: str) -> str:
    return f"{MARKS}/{quote_name(name)}"


def quote_name(name: str) -> str:
    """As one part of a path."""
    return quote(name, safe="").replace(".", "%2E")


def unquote_name(part: str) -> str:
    return unquote(part)


def write(record: Any) -> bytes:
    return msgspec.json.encode(record)


def read(data: bytes, form: type[RecordT]) -> RecordT:
    """Raises FormatError."""
    try:
        return msgspec.json.decode(data, type=form)
    except DECODE_ERRORS as error:
        raise FormatError(f"the store holds no {form.__name__} that this version reads: {error}") from error


async def fetch(store: Store, path: str, form: type[RecordT]) -> tuple[RecordT, Stat] | None:
    """A record and its node's state; None if it is not there."""
    try:
        data, stat = await store.get(path)
    except NodeMissingError:
        return None
    return read(data, form), stat


async def prepare(store: Store) -> None:
    """The folders, where they are missing."""
    if await store.exists(FOLDERS[-1]) is not None:
        return
    for folder in FOLDERS:
        await store.ensure(folder)


async def list_nodes(store: Store) -> list[NodeRecord]:
    """The nodes that are up."""
    try:
        names = await store.children(NODES)
    except NodeMissingError:
        return []
    found = [await fetch(store, f"{NODES}/{name}", NodeRecord) for name in names]
    return [each[0] for each in found if each is not None]


async def remove(store: Store, path: str) -> None:
    """Delete a node that somebody else may have deleted."""
    try:
        await store.delete(path)
    except NodeMissingError:
        return
