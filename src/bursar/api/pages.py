"""Pages that are made elsewhere and only sent here: metrics, health, documents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from bursar.api.ratelimit import Fields


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` in pieces: a large one is sent, and kept, piece by piece."""

    status: int
    form: str
    body: Sequence[bytes]
    fields: Fields | None = None

    @classmethod
    def json(cls, status: int, value: Any) -> Answer:
        return cls(status, "application/json", [msgspec.json.encode(value) + b"\n"])

    async def stream(self) -> AsyncIterator[bytes]:
        for piece in self.body:
            yield piece
            await asyncio.sleep(0)  # a socket takes megabytes at once; others have their turn meanwhile


Page = Callable[[], Awaitable[Answer]]
