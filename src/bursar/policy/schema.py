"""The policy's JSON Schema, for editors: made from the same keys that the reader uses.

A schema cannot compare two values (limit and reservation) nor follow a name (a nested tenant's
parent); `bursar check` does.
"""

from __future__ import annotations

from bursar.policy.keys import POLICY
from bursar.policy.shapes import Schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schema() -> Schema:
    return {
        "$schema": DIALECT,
        "title": "bursar policy",
        "description": "What was promised to whom: resources, their tenants, and how the daemon runs.",
        **POLICY.schema(),
    }
