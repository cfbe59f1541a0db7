"""What it takes to end a session: its id and its password, and who keeps them for the next life.

A process that was killed leaves a session behind, whose ephemeral nodes say for the rest of its
timeout that a leader leads and that a member is there. The node's next life waits for its own ghost,
unless it can end that session itself. So a store tells `SessionRecord` of every session that it opens,
at once, and ends the one that an earlier life left there.

Ending a session that is in use would break what its owner was promised (`Store.trusted_until`). The
password keeps anybody from ending another's by its number alone: in a store that was set up anew,
numbers begin again. That the earlier life is over is for the one who keeps the record to know.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

PASSWORD_BYTES = 16


class Credentials(NamedTuple):
    """Whoever has them may end the session. `seen` is how far the store's history went, in the engine's
    own words: one that went less far is not the store any more."""

    session: int
    password: bytes
    seen: str = ""


class SessionRecord(Protocol):
    """Outlives the process."""

    def former(self) -> Credentials | None:
        """Those of a session of an earlier life; None unless that life is known to be over."""

    def seen(self) -> str:
        """What was kept as `seen` last, by whatever life; empty for nothing."""

    def keep(self, credentials: Credentials) -> None:
        """From now on these are this life's. Returns when they are durable."""
