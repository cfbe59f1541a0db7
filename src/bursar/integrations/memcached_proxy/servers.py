"""A client's connection to one memcached server: requests out, replies in, in the same order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from bursar.errors import FormatError
from bursar.integrations.memcached_proxy.replies import WHOLE, ReplyReader, Slot

if TYPE_CHECKING:
    from bursar.integrations.memcached_proxy.connection import ClientLink

BUFFER_BYTES = 256 * 1024


class ServerLink(asyncio.Protocol):
    """`queue`: what this server owes. What belongs to the head of the client's line is passed on as it
    comes; what comes before its turn is kept in its slot."""

    def __init__(self, client: ClientLink, place: int) -> None:
        self._client = client
        self._line = client.line
        self.place = place
        self.queue: deque[Slot] = deque()
        self.outgoing: list[bytes] = []
        self.writable = True
        self._reader = ReplyReader()
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self.write = self.transport.write

    def flush(self) -> None:
        if self.outgoing:
            self.transport.writelines(self.outgoing)
            self.outgoing = []

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._client.advance()

    def connection_lost(self, error: Exception | None) -> None:
        self._client.server_lost(self)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            at = self._match(data)
        except FormatError as error:
            self._client.cut_off(str(error))
            return
        if at < len(data):
            self._rest = data[at:]
        self._client.server_told()

    def _match(self, data: bytes) -> int:
        """Pass on what is here of the replies; where to go on with the next piece."""
        queue, line, client = self.queue, self._line, self._client
        out: list[bytes] = []
        begun = at = 0
        while queue:
            slot = queue[0]
            if slot is not line[0] or slot.shape not in WHOLE:
                if at > begun:
                    out.append(data[begun:at])
                at = begun = self._set_aside(data, at, slot, out)
            else:
                came = at
                at = self._reader.pass_over(data, at, slot)
                if slot.count:
                    slot.begun = slot.begun or at > came
            if slot.count:
                break
            queue.popleft()
            if slot.held is not None:
                client.answered(slot.held)
            if slot is line[0]:
                line.popleft()
                if line and line[0].kept is not None:
                    out.append(data[begun:at])
                    begun = at
                    client.collect(out)
        else:
            if at < len(data):
                raise FormatError("the memcached server answered what nobody asked")
        if begun == 0 and not out:
            client.write(data if at == len(data) else data[:at])
        else:
            out.append(data[begun:at])
            client.write(b"".join(out))
        return at

    def _set_aside(self, data: bytes, at: int, slot: Slot, out: list[bytes]) -> int:
        """Replies that come before their turn, or of which something is left out."""
        is_head = slot is self._line[0]
        begun, pieces = at, out if is_head else []
        if slot.shape in WHOLE:
            at = self._reader.pass_over(data, at, slot)
            pieces.append(data[begun:at])
        else:
            at = self._reader.sift(data, at, slot, pieces)
        if is_head:
            slot.begun = slot.begun or at > begun
            return at
        slot.kept = (slot.kept or []) + pieces
        self._client.keep(self, sum(map(len, pieces)))
        return at
