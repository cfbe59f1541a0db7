"""What only HTTP knows: errors that have a status of their own."""

from __future__ import annotations

from bursar.errors import BursarError, UsageError


class MissingError(UsageError):
    """There is no such thing: 404."""


class StateError(UsageError):
    """It is not in a state in which that can be done: 409."""


class TooManyError(BursarError):
    """One caller, or all of them, would occupy too much: 503, try again later."""


class BodyError(UsageError):
    """What was sent cannot be read: 400, 413, 415 or 422."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


class UnidentifiedError(BursarError):
    """Nobody knows who asks: 401."""


class GoneError(BursarError):
    """Whoever asked has gone: there is nobody to answer."""
