"""Counting what the door did, for one tenant."""

from __future__ import annotations

from dataclasses import dataclass

from bursar.errors import BursarError, Refused, Unknown
from bursar.resource.lots import Lot
from bursar.resource.statistics import Tally
from bursar.resource.tickets import Granted


@dataclass(slots=True)
class TallyCounter:
    """The numbers of a `Tally`, while they rise."""

    granted: int = 0
    granted_requests: int = 0
    refused: int = 0
    refused_requests: int = 0
    unknown: int = 0
    unknown_requests: int = 0
    would_refuse: int = 0
    would_refuse_requests: int = 0
    fallback: int = 0
    fallback_requests: int = 0
    returned: int = 0

    def grant(self, granted: Granted) -> None:
        if granted.replayed:
            return
        self.add(granted.amount, 1)
        if granted.fallback in ("keep", "safe"):
            self.fallback += granted.amount
            self.fallback_requests += 1

    def add(self, tokens: int, requests: int) -> None:
        """So many were granted, from a lot."""
        self.granted += tokens
        self.granted_requests += requests

    def fail(self, amount: int, answer: BursarError) -> None:
        if isinstance(answer, Refused):
            self.refuse(amount)
        elif isinstance(answer, Unknown):
            self.unknown += amount
            self.unknown_requests += 1

    def refuse(self, amount: int, requests: int = 1) -> None:
        self.refused += amount
        self.refused_requests += requests

    def merge(self, other: TallyCounter) -> None:
        """What was counted for another tenant, which is forgotten."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def let_through(self, amount: int) -> None:
        """Shadow mode: this would have been refused."""
        self.would_refuse += amount
        self.would_refuse_requests += 1

    def read(self, lot: Lot | None) -> Tally:
        """The numbers now, with what was granted from the lot in hand."""
        spent, requests = (lot.spent, lot.requests) if lot is not None else (0, 0)
        return Tally(
            granted=self.granted + spent,
            granted_requests=self.granted_requests + requests,
            refused=self.refused,
            refused_requests=self.refused_requests,
            unknown=self.unknown,
            unknown_requests=self.unknown_requests,
            would_refuse=self.would_refuse,
            would_refuse_requests=self.would_refuse_requests,
            fallback=self.fallback,
            fallback_requests=self.fallback_requests,
            returned=self.returned,
        )
