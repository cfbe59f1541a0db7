"""Tokens: made, listed and revoked in the store, where only what proves them is kept.

A token is `bursar_ID_SECRET`. Its secret is 256 random bits, which nobody can try out; so one round
of SHA-256 keeps it as safe as a slow hash would, which is for secrets that people choose, and
costs a daemon that is shown a thousand wrong ones next to nothing.

A record may name a certificate in place of a secret: whoever shows that certificate has its scopes.
The first record turns rights on, and they stay on when the last one is revoked: otherwise
revoking a stolen token would open the door to the thief. `revoke_all` turns them off.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence

from bursar.errors import (
    DeniedError,
    FormatError,
    NodeExistsError,
    NodeMissingError,
    UsageError,
    VersionError,
)
from bursar.fleet import audit, layout
from bursar.fleet.layout import TOKENS, Record
from bursar.fleet.rights import ALL, BELOW, EVERYTHING, NOBODY, Known, Scope
from bursar.policy.names import check_plain_name, check_tenant_name
from bursar.world import Check, Create, Delete, Set, Stat, Store

PREFIX = "bursar_"
SECRET_BYTES = 32
ID_BYTES = 6
ID_MAX = 64
TEXT_MAX = 4_096
"""Of what is shown as a token: hashing more would be work that anybody could cause."""

TOKENS_MAX = 5_000
NOTE_MAX = 200
REQUIRED = b"required"
"""What the folder of the tokens holds once rights are on."""


class Token(Record, frozen=True, kw_only=True):
    """`digest`: SHA-256 of the token, or else `certificate` names who has these scopes. `note`: what it
    is for. Wall times; `expires_ns` 0: never."""

    id: str
    scopes: tuple[Scope, ...]
    digest: str = ""
    certificate: str = ""
    note: str = ""
    by: str = ""
    at_ns: int = 0
    expires_ns: int = 0

    @property
    def name(self) -> str:
        """As it stands in the audit."""
        if self.certificate:
            return f"certificate {self.certificate}"
        return f"token {self.id}" + (f" ({self.note})" if self.note else "")

    def is_good(self, wall_ns: int) -> bool:
        return not self.expires_ns or wall_ns < self.expires_ns


def token_path(id: str) -> str:
    return f"{TOKENS}/{id}"


def certificate_id(name: str) -> str:
    """So that there is one record a certificate, and whoever sees the certificate finds it."""
    return "c" + hashlib.sha256(name.encode()).hexdigest()[: 2 * ID_BYTES]


def read_id(text: str) -> str:
    """The id in a token, or in what may be an id already. "" for what cannot be either."""
    id = text[:TEXT_MAX].removeprefix(PREFIX).partition("_")[0]
    return id if id.isascii() and id.isalnum() and len(id) <= ID_MAX else ""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def proves(text: str, kept: str) -> bool:
    """Whether the digest that is kept is of that text. In constant time: what differs is nobody's to
    learn."""
    return bool(kept) and len(text) <= TEXT_MAX and hmac.compare_digest(digest(text), kept)


async def list_tokens(store: Store) -> list[Token]:
    """By when they were made. One that this build cannot read gives no rights, and is not listed."""
    try:
        names = await store.children(TOKENS)
    except NodeMissingError:
        return []
    found = [await read_token(store, name) for name in names]
    return sorted((token for token in found if token is not None), key=lambda token: (token.at_ns, token.id))


async def read_token(store: Store, name: str) -> Token | None:
    """The record in that node of the folder; None if it is gone, or of a newer build."""
    if not name:
        return None
    try:
        found = await layout.fetch(store, f"{TOKENS}/{name}", Token)
    except FormatError:
        return None
    return None if found is None else found[0]


async def is_required(store: Store) -> bool:
    """Whether whoever shows nothing is denied."""
    return (await _read_folder(store))[0]


async def _read_folder(store: Store) -> tuple[bool, Stat | None]:
    try:
        data, stat = await store.get(TOKENS)
    except NodeMissingError:
        return False, None
    return data == REQUIRED or stat.children > 0, stat


async def create_token(
    store: Store,
    scopes: Sequence[Scope],
    *,
    by: str,
    at_ns: int,
    note: str = "",
    certificate: str = "",
    expires_ns: int = 0,
) -> tuple[Token, str]:
    """Make one: its record, and its text, which is told here and never again ("" for a certificate).
    Raises UsageError."""
    _check(scopes, note, certificate, at_ns, expires_ns)
    await layout.prepare(store)
    await store.sync()
    _, stat = await _read_folder(store)
    if stat is not None and stat.children >= TOKENS_MAX:
        raise UsageError(f"there are {stat.children} tokens; revoke some (`bursar token list`)")
    id = certificate_id(certificate) if certificate else secrets.token_hex(ID_BYTES)
    text = "" if certificate else new_text(id)
    token = Token(
        id=id,
        scopes=tuple(scopes),
        digest=digest(text) if text else "",
        certificate=certificate,
        note=note,
        by=by,
        at_ns=at_ns,
        expires_ns=expires_ns,
    )
    await _write(store, token, Set(TOKENS, REQUIRED))
    return token, text


def new_text(id: str) -> str:
    return f"{PREFIX}{id}_{secrets.token_urlsafe(SECRET_BYTES)}"


async def _write(store: Store, token: Token, mark: Set) -> None:
    scopes = "; ".join(map(str, token.scopes))
    line = audit.record(token.by, token.at_ns, "token", token.name, f"created: {scopes}"[: audit.DETAIL_MAX])
    try:
        await store.transact([Create(token_path(token.id), layout.write(token)), mark, line])
    except NodeExistsError as error:
        raise UsageError(
            f"{token.name} has rights already: `bursar token revoke {token.id}` first, to give it others"
        ) from error
    await audit.trim(store)


async def make_administrator(store: Store, by: str, at_ns: int) -> str | None:
    """The first token, which may do everything: its text; None if rights were given out before."""
    await layout.prepare(store)
    await store.sync()
    required, stat = await _read_folder(store)
    if required or stat is None:
        return None
    text = new_text(id := secrets.token_hex(ID_BYTES))
    token = Token(id=id, scopes=(EVERYTHING,), digest=digest(text), note="administrator", by=by, at_ns=at_ns)
    try:
        await _write(store, token, Set(TOKENS, REQUIRED, stat.version))
    except VersionError:
        return None  # somebody else has just made one
    return text


async def revoke_token(store: Store, text: str, *, by: str, at_ns: int) -> Token:
    """By its id, or by the token itself, for who has found one. Raises UsageError."""
    await layout.prepare(store)
    await store.sync()
    token = await read_token(store, read_id(text))
    if token is None:
        raise UsageError("there is no such token; `bursar token list` lists them, with their ids")
    line = audit.record(by, at_ns, "token", token.name, "revoked")
    try:
        await store.transact([Delete(token_path(token.id)), line])
    except NodeMissingError as error:
        raise UsageError(f"{token.name} was revoked just before") from error
    await audit.trim(store)
    return token


async def revoke_all(store: Store, *, by: str, at_ns: int) -> int:
    """Every token goes, and rights are off: whoever reaches a daemon may do everything there. How many
    there were."""
    await layout.prepare(store)
    await store.sync()
    _, stat = await _read_folder(store)
    assert stat is not None, "just prepared"
    names = await store.children(TOKENS)
    line = audit.record(by, at_ns, "token", "all", f"{len(names)} revoked, rights are off")
    deletions = [Delete(f"{TOKENS}/{name}") for name in names]
    at_once = store.operations_max - 2
    try:
        while len(deletions) > at_once:  # rights stay on until the last of them is gone
            await store.transact([Check(TOKENS, stat.version), *deletions[:at_once]])
            deletions = deletions[at_once:]
        await store.transact([*deletions, Set(TOKENS, b"", stat.version), line])
    except (VersionError, NodeMissingError) as error:
        raise UsageError("others change tokens at the same time; try again") from error
    await audit.trim(store)
    return len(names)


async def check_join(
    store: Store, token: str | None, node_name: str, *, at_ns: int, certificate: Iterable[str] = ()
) -> str:
    """Whether a node may join the fleet of that store: by whose right, for the record of its membership.
    Raises DeniedError. Where no rights were given out, everybody may."""
    await store.sync()
    if not await is_required(store):
        return "local"
    shown = [read_id(token)] if token is not None else [certificate_id(name) for name in certificate]
    found = [await read_token(store, id) for id in shown]
    good = [
        each
        for each in found
        if each is not None and each.is_good(at_ns) and (token is None or proves(token, each.digest))
    ]
    if not good:
        raise DeniedError(f"{node_name} shows no token that lets it join. {NOBODY}")
    caller = Known(good[0].name, lambda: tuple(scope for each in good for scope in each.scopes))
    caller.check("join")
    return caller.name


def _check(scopes: Sequence[Scope], note: str, certificate: str, at_ns: int, expires_ns: int) -> None:
    if not scopes or any(not (scope.verbs and scope.resources and scope.tenants) for scope in scopes):
        raise UsageError("a token without any right is no use: give verbs, resources and tenants")
    for scope in scopes:
        for resource in scope.resources:
            _check_pattern("resource", resource, resource, check_plain_name(resource))
        for tenant in scope.tenants:
            name = tenant.removesuffix(BELOW)
            _check_pattern("tenant", tenant, name, check_tenant_name(name))
    if len(note) > NOTE_MAX or not note.isprintable():
        raise UsageError(f"a note is one line of at most {NOTE_MAX} characters")
    if certificate and (not certificate.isprintable() or "/" in certificate):
        raise UsageError("the name of a certificate is its common name, or one of its alternative names")
    if expires_ns and expires_ns <= at_ns:
        raise UsageError("the token would have expired already")


def _check_pattern(what: str, pattern: str, name: str, wrong: str | None) -> None:
    if pattern != ALL and (wrong is not None or ALL in name):
        means = '"acme", "acme/*" or "*"' if what == "tenant" else '"llm" or "*"'
        raise UsageError(f"{pattern[:100]!r} names no {what}: write {means}")
