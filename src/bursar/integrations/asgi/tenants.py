"""Whose request is it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bursar.integrations.asgi.scopes import Scope

FindTenant = Callable[[Scope], str | None]


def by_header(name: str, default: str | None = None) -> FindTenant:
    """The tenant is the value of a request header. Trust it only behind something that sets it."""
    wanted = name.lower().encode("latin-1")

    def find(scope: Scope) -> str | None:
        for key, value in scope["headers"]:
            if key == wanted:
                text: str = value.decode("latin-1")
                return text
        return default

    return find


def by_key(keys: Mapping[str, str], header: str = "x-api-key") -> FindTenant:
    """The tenant that an API key belongs to; "Bearer KEY" where the header is authorization."""
    find_key = by_header(header)

    def find(scope: Scope) -> str | None:
        key = find_key(scope)
        return None if key is None else keys.get(key.removeprefix("Bearer "))

    return find


def by_path(position: int) -> FindTenant:
    """The tenant is a part of the path: 0 is "acme" in /acme/items. What an application is mounted under
    does not count."""

    def find(scope: Scope) -> str | None:
        path, root = scope["path"], scope.get("root_path", "").rstrip("/")
        # Some servers leave the root in the path, as ASGI has it, and some take it off.
        inner = path.removeprefix(root) if path.startswith(f"{root}/") else path
        parts = inner.strip("/").split("/")
        return parts[position] if position < len(parts) and parts[position] else None

    return find
