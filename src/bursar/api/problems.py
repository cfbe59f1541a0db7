"""Problem documents (RFC 9457): what an answer says that is not what was asked for.

Two types are the IETF draft's own (ratelimit-headers); the others are "about:blank", whose meaning is
that of the status, with a `reason` for programs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bursar.api.ratelimit import Fields, Writer, whole_seconds
from bursar.errors import Refused

TYPES = "https://iana.org/assignments/http-problem-types#"
CONTENT_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer that is a problem. `fields` are headers, `more` members of the document."""

    status: int
    title: str
    detail: str
    fields: Fields = field(default_factory=list)
    more: Mapping[str, Any] = field(default_factory=dict)

    def write(self) -> bytes:
        head = {"type": "about:blank", "status": self.status, "title": self.title, "detail": self.detail}
        return json.dumps({**head, **self.more}).encode()

    def write_headers(self, size: int) -> Fields:
        own = [
            (b"content-type", CONTENT_TYPE.encode("ascii")),
            (b"content-length", str(size).encode("ascii")),
        ]
        return own + self.fields


def quota_exceeded(resource: str, refused: Refused, writer: Writer, **more: Any) -> Problem:
    named = {"type": TYPES + "quota-exceeded", "violated-policies": [resource], **more}
    return Problem(429, "Quota exceeded", refused.why, writer.write_refusal(refused), named)


def reduced_capacity(detail: str, retry_after: float, **more: Any) -> Problem:
    fields = [(b"retry-after", str(whole_seconds(retry_after)).encode("ascii"))]
    named = {"type": TYPES + "temporary-reduced-capacity", **more}
    return Problem(503, "Quota cannot be learnt now", detail, fields, named)
