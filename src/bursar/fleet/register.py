"""The rights that a node knows: the tokens in the store, followed, and the one in its file.

A token's record is never changed, only made and deleted; so what is followed is which there are. A
node that cannot reach the store goes on with those that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bursar.errors import DeniedError, NodeMissingError
from bursar.fleet import layout
from bursar.fleet.layout import TOKENS
from bursar.fleet.refusals import Refusals
from bursar.fleet.retries import follow, persist
from bursar.fleet.rights import NOBODY, Anybody, Caller, Known, Scope
from bursar.fleet.tokens import REQUIRED, Token, certificate_id, digest, proves, read_id, read_token
from bursar.world import SECOND_NS, Trace, World

UNKNOWN = "this token is not known here, was revoked or has expired: pass token=..., or set BURSAR_TOKEN"


class Register:
    """Implements `bursar.fleet.rights.Rights` for one node. `token`: the one of `[daemon] token_file`,
    whoever shows it may do everything."""

    def __init__(self, world: World, token: str | None = None, warn: Trace | None = None) -> None:
        """`warn` writes a line of the log."""
        self.tokens: dict[str, Token] = {}
        self.refusals = Refusals(world.clock.now, warn or world.trace)
        self._world = world
        self._digest = "" if token is None else digest(token)
        self._required = False
        self._changes = 0
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked who it is."""
        return not self._digest and not self._required

    async def open(self) -> None:
        """Learn what there is, before anybody is let in."""
        await persist(self._world, self._open)

    async def _open(self) -> None:
        await layout.prepare(self._world.store)
        await self._read()

    def start(self) -> None:
        self._world.spawn(self._follow(), "fleet.tokens")
        self._world.spawn(self._watch_expiry(), "fleet.expiry")

    def follow(self, changed: Callable[[], None]) -> None:
        self._callbacks.append(changed)

    def note_refused(self, source: str, why: str) -> int:
        return self.refusals.note(source, why)

    # -- telling who asks

    def identify(self, token: str | None, certificate: Iterable[str] = ()) -> Caller:
        if self.is_open:
            return Anybody(is_open=lambda: self.is_open)
        if token is not None:
            return self._identify_token(token)
        known = [id for id in map(certificate_id, certificate) if self._find_good((id,))]
        if not known:
            raise DeniedError(NOBODY)
        return Known(self.tokens[known[0]].name, self._remember(*known))

    def _identify_token(self, text: str) -> Caller:
        if proves(text, self._digest):
            return Anybody("token file")
        id = read_id(text)
        found = self.tokens.get(id)
        if found is None or not proves(text, found.digest) or not self._find_good((id,)):
            raise DeniedError(UNKNOWN)
        return Known(found.name, self._remember(id))

    def _find_good(self, ids: Iterable[str]) -> list[Token]:
        wall_ns = self._world.clock.wall()
        found = [self.tokens.get(id) for id in ids]
        return [token for token in found if token is not None and token.is_good(wall_ns)]

    def _remember(self, *ids: str) -> Callable[[], tuple[Scope, ...]]:
        """The scopes of these tokens as they are at each call. Every request asks, so they are looked up
        anew only when tokens were made or revoked, or one of these expires."""
        changes, expires_ns = -1, 0
        scopes: tuple[Scope, ...] = ()

        def find() -> tuple[Scope, ...]:
            nonlocal changes, expires_ns, scopes
            if changes != self._changes or (expires_ns and self._world.clock.wall() >= expires_ns):
                good = self._find_good(ids)
                changes = self._changes
                expires_ns = min((token.expires_ns for token in good if token.expires_ns), default=0)
                scopes = tuple(scope for token in good for scope in token.scopes)
            return scopes

        return find

    # -- following

    async def _follow(self) -> None:
        await follow(self._world, TOKENS, lambda: persist(self._world, self._read))

    async def _read(self) -> None:
        store = self._world.store
        await store.sync()
        try:
            data, _ = await store.get(TOKENS)
            names = await store.children(TOKENS)
        except NodeMissingError:
            data, names = b"", []
        tokens = {name: self.tokens.get(name) or await read_token(store, name) for name in names}
        before = (self._required, self.tokens)
        self._required = data == REQUIRED or bool(names)
        self.tokens = {name: token for name, token in tokens.items() if token is not None}
        if before != (self._required, self.tokens):
            self._world.trace("fleet.tokens", known=len(self.tokens), required=self._required)
            self._tell()

    async def _watch_expiry(self) -> None:
        """A token that expires is worth nothing at once; those who follow are told within a second."""
        seen_ns = self._world.clock.wall()
        while True:
            await self._world.clock.sleep(SECOND_NS)
            now_ns = self._world.clock.wall()
            if any(seen_ns < token.expires_ns <= now_ns for token in self.tokens.values()):
                self._tell()
            seen_ns = now_ns

    def _tell(self) -> None:
        self._changes += 1
        for callback in self._callbacks:
            callback()
