"""The restore drill: disks are lost under two daemons, and what docs/operations.md says is done. Nothing
that clients were told is told again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .pair import LIMIT, Pair, find_fence, kill, spend
from .processes import Process


@contextmanager
def serving(pair: Pair, *names: str) -> Iterator[list[Process]]:
    daemons = [pair.serve(name) for name in names]
    try:
        for daemon in daemons:
            daemon.wait_for("daemon.ready")
        yield daemons
    finally:
        for daemon in daemons:
            daemon.__exit__()


def why_not(pair: Pair, name: str) -> str:
    """What a daemon that does not start says."""
    with pair.serve(name) as daemon:
        assert daemon.wait() != 0
        return "".join(daemon.lines)


async def work(pair: Pair, name: str) -> tuple[int, int]:
    return await spend(pair.at[name], 100), await find_fence(pair.at[name])


async def test_a_restored_store_is_refused_until_it_is_adopted_and_nothing_is_granted_twice(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path)
    with serving(pair, "a") as daemons:
        told, _ = await work(pair, "a")
        pair.back_store_up("night")
        kill(*daemons)
    with serving(pair, "a", "b") as daemons:
        at_a, fence = await work(pair, "a")
        told += at_a + await spend(pair.at["b"], 100)
        kill(*daemons)
    pair.restore_store("night")
    said = why_not(pair, "a")
    assert "was restored from a backup" in said and "store adopt" in said
    pair.adopt("--state", str(pair.live / "a"))
    with serving(pair, "a", "b"):
        told += await spend(pair.at["a"]) + await spend(pair.at["b"])
        assert told == LIMIT
        assert await find_fence(pair.at["b"]) > fence


async def test_an_older_copy_of_a_state_directory_is_refused_and_another_node_takes_its_place(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path)
    with serving(pair, "a") as daemons:
        told, _ = await work(pair, "a")
        kill(*daemons)
    shutil.copytree(pair.live / "a", tmp_path / "copy")
    with serving(pair, "a") as daemons:
        told += await spend(pair.at["a"], 100)
        kill(*daemons)
    shutil.rmtree(pair.live / "a")
    shutil.copytree(tmp_path / "copy", pair.live / "a")
    assert "what it handed out since is not in it" in why_not(pair, "a")
    with serving(pair, "c"):
        pair.command("quota", "fence", "a", "--policy", str(pair.policies["c"]), "--yes")
        told += await spend(pair.at["c"])
    assert told <= LIMIT


async def test_where_everything_is_lost_only_what_somebody_tops_up_is_granted(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with serving(pair, "a", "b") as daemons:
        told, _ = await work(pair, "a")
        pair.back_store_up("night")
        at_b, fence = await work(pair, "b")
        kill(*daemons)
    for name in ("a", "b"):
        shutil.rmtree(pair.live / name)
    pair.restore_store("night")
    pair.adopt()
    with serving(pair, "a", "b"):
        assert await spend(pair.at["a"]) == await spend(pair.at["b"]) == 0
        left = str(LIMIT - told - at_b)
        pair.command("quota", "topup", "acme", left, "--policy", str(pair.policies["a"]))
        assert await spend(pair.at["b"]) + await spend(pair.at["a"]) == int(left)
        assert await find_fence(pair.at["a"]) > fence
