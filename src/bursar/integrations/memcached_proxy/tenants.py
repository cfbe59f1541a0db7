"""Whose key is it?"""

from __future__ import annotations

import re
from collections.abc import Callable

from bursar.errors import UsageError

FindTenant = Callable[[bytes], str]


class ByPrefix:
    """The tenant is what stands in a key before the separator."""

    def __init__(self, separator: bytes) -> None:
        self.separator = separator

    def __call__(self, key: bytes) -> str:
        return key.partition(self.separator)[0].decode(errors="replace")


def by_prefix(separator: str = ":") -> ByPrefix:
    """The tenant is what stands in a key before the separator: "acme" in acme:user:7."""
    if not separator:
        raise UsageError("the separator of a key's tenant is empty")
    return ByPrefix(separator.encode())


def by_pattern(pattern: str) -> FindTenant:
    """The tenant is what the pattern's group `tenant` matches at the beginning of a key:
    r":\\d+:(?P<tenant>[^:]+):" for Django's ":1:acme:user:7". A key that it does not match is nobody's."""
    try:
        found = re.compile(pattern.encode())
    except re.error as error:
        raise UsageError(f"{pattern!r} is no regular expression: {error}") from None
    if "tenant" not in found.groupindex:
        raise UsageError(f"{pattern!r} has no group named tenant: write (?P<tenant>...) around the name")

    def find(key: bytes) -> str:
        match = found.match(key)
        name = None if match is None else match["tenant"]
        return "" if name is None else name.decode(errors="replace")

    return find
