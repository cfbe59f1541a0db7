"""Which servers may begin the next period alone, and with what: as its leader knows it (see `grace`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bursar.rates.messages import NO_PART, Life, Part, State


def number_parts(lives: Iterable[Life]) -> dict[Life, Part]:
    """A part for each, in order: together they are the whole."""
    numbered = tuple(lives)
    return {life: Part(place, len(numbered)) for place, life in enumerate(numbered)}


class Standing:
    """The lives to which a part of the next period may have been given.

    It is given with a grant that says so, and gone once a later one was acknowledged that does not: that
    is how new terms come into force with the next period. It is gone, too, with the life of a server
    that ended before anybody could have begun that period.
    """

    def __init__(self) -> None:
        self._parts: Mapping[Life, Part] = {}
        self._given: dict[Life, Part] = {}
        self._withdrawn: dict[Life, int] = {}

    def open(self, state: State, *, inherited: bool) -> None:
        """Another state counts. What was given under it is not known if it was inherited: all that may
        have been counts."""
        tied = set(state.tied)
        parts = number_parts(state.standing)
        self._parts = {life: part for life, part in parts.items() if life[0] not in tied}
        self._given = dict(self._parts) if inherited else {}
        self._withdrawn = {}

    def find_part(self, life: Life) -> Part:
        """What a grant may say."""
        return self._parts.get(life, NO_PART)

    @property
    def given(self) -> Mapping[Life, Part]:
        """Whoever may begin the next period, or has begun it already."""
        return self._given

    def sent(self, life: Life, sequence: int, part: Part) -> None:
        if part.of:
            self._given[life] = part
            self._withdrawn.pop(life, None)
        elif life in self._given:
            self._withdrawn.setdefault(life, sequence)

    def acknowledged(self, life: Life, sequence: int) -> None:
        if sequence >= self._withdrawn.get(life, sequence + 1):
            self.drop(life)

    def drop(self, life: Life) -> None:
        """It begins nothing any more, and has begun nothing."""
        self._given.pop(life, None)
        self._withdrawn.pop(life, None)
