"""A promise that was broken, in a sentence, with the lines it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

LINES_MAX = 20
"""A sum of thousands of grants is shown by its first and last lines; the sentence has the count."""


class HasPlace(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...


@dataclass(frozen=True, order=True)
class Place:
    """A line of the history: the file's name under `history/`, and its number, from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"history/{self.file}:{self.line}"


@dataclass(frozen=True)
class Breach:
    promise: str
    at: int
    """When it could first be seen: breaches are told in this order."""
    sentence: str
    places: tuple[Place, ...]


def make_breach(promise: str, at: int, sentence: str, lines: Iterable[HasPlace]) -> Breach:
    places = [Place(line.file, line.line) for line in lines]
    if len(places) > LINES_MAX:
        half = LINES_MAX // 2
        places = places[:half] + places[-half:]
    return Breach(promise, at, sentence, tuple(places))
