"""A SQLite store is laid out once, however many begin to use it at the same moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bursar.stores.schema import prepare

USERS = 8
FILES = 20


def test_a_new_file_is_prepared_by_many_at_once(tmp_path: Path) -> None:
    """Switching to a write-ahead log does not wait for another who does the same: it fails at once."""
    start = threading.Barrier(USERS)

    def use(path: str) -> None:
        start.wait()
        prepare(path)

    with ThreadPoolExecutor(USERS) as pool:
        for number in range(FILES):
            list(pool.map(use, [str(tmp_path / f"{number}.db")] * USERS))
