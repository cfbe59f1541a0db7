"""What a memcached server answers: where replies end in a stream of bytes. No I/O.

Replies pass through as they came, in the largest pieces that can be cut; of most of them nothing is looked
at but the head of a value and what stands behind it.
"""

from __future__ import annotations

import re

from bursar.errors import FormatError
from bursar.resource.grants import Grant

LINE_MAX_BYTES = 32 * 1024
"""A get of a hundred of the longest keys, and some."""

NONE, LINE, VALUES, META, PART, QUIET, DRAINED, OWN = range(8)
"""The shapes of replies. Passed on as they come: one line; values up to END; one meta reply. With something
left out: values of a get that was split over servers, without their END; meta replies up to the MN that was
asked for behind them; replies that nobody wants, up to that MN. NONE: no reply. OWN: the proxy's own words.
"""

WHOLE = (LINE, VALUES, META)
BARRIER = b"mn\r\n"
"""Sent behind requests that may be answered or not: its answer comes when theirs have come."""

_BARRIER_ENDS = (b"MN", b"ERROR")
"""The second is what a server says that is too old to know `mn`."""

_END = b"END\r\n"
_VALUE = re.compile(rb"VALUE [!-~\x80-\xff]+ \d{1,10} (\d{1,10})(?: \d{1,20})?\r\n").match


class Held:
    """A grant for several replies: given back when the last of them has come."""

    __slots__ = ("grant", "left")

    def __init__(self, grant: Grant, left: int) -> None:
        self.grant = grant
        self.left = left


class Slot:
    """A place in a client's line: so many replies of one shape, which a server owes, or words of the proxy's
    own. `kept` came before its turn. `begun`: some of it was passed on."""

    __slots__ = ("begun", "count", "held", "kept", "shape")

    def __init__(self, shape: int, count: int, held: Held | None = None) -> None:
        self.shape = shape
        self.count = count
        self.held = held
        self.kept: list[bytes] | None = None
        self.begun = False

    @classmethod
    def own(cls, words: bytes) -> Slot:
        slot = cls(OWN, 0)
        slot.kept = [words]
        return slot


class ReplyReader:
    """Reads the replies of one connection. Data passes through; whoever calls keeps an unfinished line."""

    def __init__(self) -> None:
        self._skip = 0

    def pass_over(self, data: bytes, at: int, slot: Slot) -> int:
        """Where the slot's replies end, or as far as they are here. For shapes that are passed on whole."""
        if slot.shape != VALUES:
            return self._pass_lines(data, at, slot)
        starts = data.startswith
        count = slot.count
        while count:
            if self._skip:
                slot.count = count
                return self._pass_lines(data, at, slot)
            if starts(_END, at):
                at += 5
            else:
                head = _VALUE(data, at)
                end = head.end() + int(head[1]) + 2 if head is not None else at
                if end == at or not starts(_END, end):
                    slot.count = count
                    return self._pass_lines(data, at, slot)
                at = end + 5
            count -= 1
        slot.count = 0
        return at

    def _pass_lines(self, data: bytes, at: int, slot: Slot) -> int:
        """The same with care: line by line, and values that are not all here."""
        while slot.count:
            at, ended, more = self._take(data, at, slot.shape)
            if more:
                break
            slot.count -= ended
        return at

    def _take(self, data: bytes, at: int, shape: int) -> tuple[int, bool, bool]:
        """(where to go on, whether a reply is over, whether more has to come) after one line, or what was
        left of a value."""
        if self._skip:
            here = min(self._skip, len(data) - at)
            self._skip -= here
            return at + here, not self._skip and shape == META, self._skip > 0
        end = data.find(b"\n", at)
        if end < 0:
            if len(data) - at > LINE_MAX_BYTES:
                raise FormatError("the memcached server sent a line without end")
            return at, False, True
        if shape != LINE and data.startswith((b"VALUE ", b"VA "), at):
            self._skip = _read_size(data[at:end])
            return end + 1, False, False
        return end + 1, True, False

    def sift(self, data: bytes, at: int, slot: Slot, out: list[bytes]) -> int:
        """As `pass_over`, for shapes of which something is left out; `out` gets the rest."""
        while slot.count:
            inside = self._skip > 0
            begin = at
            at, ended, more = self._take(data, at, VALUES)
            piece = data[begin:at]
            if ended and self._ends(piece, slot.shape):
                slot.count -= 1
            elif slot.shape == QUIET or (slot.shape == PART and (inside or not ended)):
                out.append(piece)
            if more:
                break
        return at

    @staticmethod
    def _ends(line: bytes, shape: int) -> bool:
        """What ends a part of a get is its END, or an error, which is a miss of those keys."""
        return shape == PART or line.rstrip() in _BARRIER_ENDS


def _read_size(line: bytes) -> int:
    words = line.split()
    at = 3 if words[0] == b"VALUE" else 1
    if len(words) <= at or not words[at].isdigit() or len(words[at]) > 10:
        raise FormatError("the memcached server sent a value without its size")
    return int(words[at]) + 2
