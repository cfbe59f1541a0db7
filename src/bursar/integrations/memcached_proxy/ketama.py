"""Which server has a key: consistent hashing as memcached's clients do it.

libketama's scheme, which libmemcached (pylibmc, PHP) calls "ketama_weighted": 160 points for each server
on a ring of 2^32, four from each MD5 of "host:port-number" (the default port 11211 is left out), and a key
belongs to the first point at or above its own hash.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import md5

POINTS = 160
DEFAULT_PORT = 11211


class Ring:
    """Finds the place of a key's server in `servers`, pairs of host and port. Equal weights."""

    def __init__(self, servers: Sequence[tuple[str, int]]) -> None:
        points = sorted(
            (int.from_bytes(digest[start : start + 4], "little"), place)
            for place, (host, port) in enumerate(servers)
            for digest in _digests(host, port)
            for start in range(0, 16, 4)
        )
        self._hashes = [point for point, _ in points]
        self._places = [place for _, place in points]

    def find(self, key: bytes) -> int:
        at = bisect_left(self._hashes, _hash(key))
        return self._places[at if at < len(self._places) else 0]


def _digests(host: str, port: int) -> list[bytes]:
    name = host if port == DEFAULT_PORT else f"{host}:{port}"
    return [md5(f"{name}-{number}".encode(), usedforsecurity=False).digest() for number in range(POINTS // 4)]


def _hash(key: bytes) -> int:
    return int.from_bytes(md5(key, usedforsecurity=False).digest()[:4], "little")
