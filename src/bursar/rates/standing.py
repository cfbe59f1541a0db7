"""Which servers may begin the next period alone, and with what: as its leader knows it (see `grace`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bursar.rates.messages import NO_PART, Life, Part, State


def number_parts(lives: Iterable[Life]) -> dict[Life, Part]:
    """A part for each, in order: together they are the whole."""
    numbered = tuple(lives)
    return {life: Part(place, len(numbered)) for place, life in enumerate(numbered)}


Number = Callable[[Iterable[Life]], dict[Life, Part]]
"""Which part each life has."""


class Standing:
    """The lives to which a part of the next period may have been given, or of some `periods` in a row.

    It is given with a grant that says so, and gone once a later one was acknowledged that does not: that
    is how new terms come into force with the next period. It is gone, too, with the life of a server
    that ended before anybody could have begun that period.
    """

    def __init__(self, number: Number = number_parts, periods: int = 1) -> None:
        self.number = number
        self._periods = periods
        self._period = 0
        self._parts: Mapping[Life, Part] = {}
        self._until: dict[Life, int] = {}
        self._withdrawn: dict[Life, int] = {}

    def open(self, state: State, *, inherited: bool) -> None:
        """Another state counts. What was given under it is not known if it was inherited: all that may
        have been counts."""
        tied = set(state.tied)
        parts = self.number(state.standing)
        self._period = state.period
        self._parts = {life: part for life, part in parts.items() if life[0] not in tied}
        until = dict.fromkeys(self._parts, state.period + self._periods) if inherited else self._until
        self._until = {life: last for life, last in until.items() if last > state.period}
        self._withdrawn = {}

    def find_part(self, life: Life) -> Part:
        """What a grant may say."""
        return self._parts.get(life, NO_PART)

    @property
    def given(self) -> Mapping[Life, Part]:
        """Whoever may begin the next period, or has begun it already."""
        return self.find_given(self._period + 1)

    def find_given(self, period: int) -> Mapping[Life, Part]:
        """Whoever may begin that period alone."""
        return {life: self._parts[life] for life, last in self._until.items() if last >= period}

    @property
    def last(self) -> int:
        """The last period that anybody may begin alone."""
        return max(self._until.values(), default=self._period)

    def sent(self, life: Life, sequence: int, part: Part) -> None:
        if part.of:
            self._until[life] = self._period + self._periods
            self._withdrawn.pop(life, None)
        elif life in self._until:
            self._withdrawn.setdefault(life, sequence)

    def acknowledged(self, life: Life, sequence: int) -> None:
        if sequence >= self._withdrawn.get(life, sequence + 1):
            self.drop(life)

    def succeed(self, life: Life, period: int) -> None:
        """Another life goes on for it, and knows that it has begun no period after this one. (Where but one
        may be begun alone, nobody knows so much.)"""
        if self._periods > 1 and life in self._until:
            self._until[life] = min(self._until[life], period)

    def drop(self, life: Life) -> None:
        """It begins nothing any more, and has begun nothing."""
        self._until.pop(life, None)
        self._withdrawn.pop(life, None)
