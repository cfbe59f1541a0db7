"""What is under way between nodes."""

from __future__ import annotations

from dataclasses import dataclass

Link = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Packet:
    """One message under way. `call` is 0 for a message that wants no reply; `muted` marks the
    copy of a repeated call whose reply will be lost, `forged` what a client says in a node's words."""

    sender: str
    to: str
    topic: str
    data: bytes
    call: int = 0
    is_reply: bool = False
    is_error: bool = False
    muted: bool = False
    forged: bool = False

    @property
    def link(self) -> Link:
        return self.sender, self.to
