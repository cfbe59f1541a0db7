"""Policies that the tests of the fleet apply."""

from __future__ import annotations

CACHE = """
[resource.cache]
kind = "rate"
servers = { a = "1k/s", b = "1k/s" }
[resource.cache.tenant]
acme = { reservation = "100/s", limit = "400/s" }
"""

LLM = """
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = { limit = 1000 }
"acme/search" = { limit = 500 }
"""

BOTH = f"# the comments of people are kept\n{CACHE}{LLM}"
