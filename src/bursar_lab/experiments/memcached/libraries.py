"""Four client libraries behind one set of verbs. Each raises `Denied` where the library says that a request
failed: not where it says that nothing was there, or was not stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol


class Denied(Exception):
    """The library raised."""


class Library(Protocol):
    def get(self, key: str) -> bytes | None: ...

    def set(self, key: str, value: bytes) -> bool: ...

    def delete(self, key: str) -> bool: ...

    def close(self) -> None: ...


def _denied(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise Denied(f"{type(error).__name__}: {error}") from error


class Pymemcache:
    def __init__(self, port: int) -> None:
        from pymemcache.client.base import Client

        self._client = Client(("127.0.0.1", port), default_noreply=False, timeout=10)

    def get(self, key: str) -> bytes | None:
        found: bytes | None = _denied(self._client.get, key)
        return found

    def set(self, key: str, value: bytes) -> bool:
        return bool(_denied(self._client.set, key, value))

    def delete(self, key: str) -> bool:
        return bool(_denied(self._client.delete, key))

    def close(self) -> None:
        self._client.close()


class Aiomcache:
    def __init__(self, port: int) -> None:
        import aiomcache

        self._runner = asyncio.Runner()

        async def open_one() -> Any:
            return aiomcache.Client("127.0.0.1", port, pool_size=1)

        self._client = self._runner.run(open_one())

    def _run(self, name: str, *arguments: Any) -> Any:
        async def call() -> Any:
            return await getattr(self._client, name)(*arguments)

        return _denied(lambda: self._runner.run(call()))

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._run("get", key.encode())
        return found

    def set(self, key: str, value: bytes) -> bool:
        return bool(self._run("set", key.encode(), value))

    def delete(self, key: str) -> bool:
        return bool(self._run("delete", key.encode()))

    def close(self) -> None:
        self._run("close")
        self._runner.close()


class Pylibmc:
    def __init__(self, port: int) -> None:
        import pylibmc

        options = {"tcp_nodelay": True, "ketama": True, "remove_failed": 1, "retry_timeout": 1}
        self._client = pylibmc.Client([f"127.0.0.1:{port}"], behaviors=options)

    def get(self, key: str) -> bytes | None:
        found: bytes | None = _denied(self._client.get, key)
        return found

    def set(self, key: str, value: bytes) -> bool:
        return bool(_denied(self._client.set, key, value))

    def delete(self, key: str) -> bool:
        return bool(_denied(self._client.delete, key))

    def close(self) -> None:
        self._client.disconnect_all()


class MetaMemcache:
    def __init__(self, port: int) -> None:
        from meta_memcache.cache_client import CacheClient
        from meta_memcache.configuration import ServerAddress, connection_pool_factory_builder
        from meta_memcache.protocol import Key

        logging.getLogger("meta_memcache").setLevel(logging.CRITICAL)  # it has a page for each error answer
        make = connection_pool_factory_builder(max_pool_size=1, connection_timeout=10, recv_timeout=10)
        servers = [ServerAddress("127.0.0.1", port)]
        self._client: Any = CacheClient.cache_client_from_servers(servers, make)
        self._key = Key

    def get(self, key: str) -> bytes | None:
        found: bytes | None = _denied(self._client.get, self._key(key))
        return found

    def set(self, key: str, value: bytes) -> bool:
        return bool(_denied(lambda: self._client.set(self._key(key), value, ttl=60)))

    def delete(self, key: str) -> bool:
        return bool(_denied(self._client.delete, self._key(key)))

    def close(self) -> None:
        """It has no word for it: its connections end with it."""
        self._client = None


LIBRARIES: dict[str, Callable[[int], Library]] = {
    "pymemcache": Pymemcache,
    "aiomcache": Aiomcache,
    "pylibmc": Pylibmc,
    "meta-memcache": MetaMemcache,
}
