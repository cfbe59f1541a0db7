"""How a node ends the session that it left in the store when it was killed.

The file `session` in the state directory holds the id and the password of the node's session. The
next life reads it, and may end that session, only because it knows that the life which opened it is
over. What tells it so is the lock of the state directory: it is the same file (a copy of the
directory has another), locked by the kernel that locked it then (the same boot). Where either
differs, the earlier life may go on somewhere, as on the machine that this one is a clone of; then
its session is left alone and ends by its timeout.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from bursar.decoding import DECODE_ERRORS
from bursar.runtime.clock import read_boot_id
from bursar.runtime.state import StateDirectory
from bursar.stores.credentials import Credentials

FILE = "session"


class Kept(msgspec.Struct, frozen=True):
    """The file, as JSON. `lock` and `boot` say by which lock of which kernel the life was guarded."""

    store: str
    session: int
    password: bytes
    lock: tuple[int, int]
    boot: str
    seen: str = ""


_decoder = msgspec.json.Decoder(Kept)


class FileSessionRecord:
    """Implements `bursar.stores.credentials.SessionRecord` for one store, by its URL."""

    def __init__(self, state: StateDirectory, store: str) -> None:
        self._state = state
        self._store = _name_store(store)
        self._boot = read_boot_id()

    def former(self) -> Credentials | None:
        kept = self._read()
        if kept is None or kept.lock != self._state.lock_identity() or not kept.boot == self._boot != "":
            return None
        return Credentials(kept.session, kept.password, kept.seen)

    def seen(self) -> str:
        kept = self._read()
        return "" if kept is None else kept.seen

    def _read(self) -> Kept | None:
        """What an earlier life kept of this store."""
        try:
            kept = _decoder.decode((self._state.path / FILE).read_bytes())
        except (FileNotFoundError, *DECODE_ERRORS):
            return None  # none was kept, or not by this version: its session ends by its timeout
        return kept if kept.store == self._store else None

    def keep(self, credentials: Credentials) -> None:
        session, password, seen = credentials
        lock = self._state.lock_identity()
        kept = Kept(self._store, session, password, lock, self._boot, seen)
        self._state.write(FILE, msgspec.json.encode(kept))


def _name_store(url: str) -> str:
    """The URL without a user's password, which is nobody's business here."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
