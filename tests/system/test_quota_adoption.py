"""The store is lost under two daemons that share a budget: through the public door, nothing is told twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from .pair import LIMIT, Pair, kill, run, spend


async def test_a_node_that_begins_anew_leaves_the_other_out(tmp_path: Path) -> None:
    """Told 1,470 of 1,000 once: the other, with its old ledger, was let in."""
    pair = Pair(tmp_path)
    with pair.serve("a") as a, pair.serve("b") as b:
        for daemon in (a, b):
            daemon.wait_for("daemon.ready")
        await spend(pair.at["a"], 200)
        await spend(pair.at["b"], 270)
        kill(a, b)
    pair.lose_store()
    shutil.rmtree(pair.live / "a")
    with pair.serve("a") as a, pair.serve("b") as b:
        a.wait_for("daemon.ready")
        assert b.wait() != 0
        said = "".join(b.lines)
        assert "belongs to the store" in said and "store adopt" in said


async def test_daemons_go_on_with_an_adopted_store_and_tell_no_more_than_the_limit(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with pair.serve("a") as a, pair.serve("b") as b:
        for daemon in (a, b):
            daemon.wait_for("daemon.ready")
        told = await spend(pair.at["a"], 200) + await spend(pair.at["b"], 270)
        kill(a, b)
    pair.lose_store()
    pair.adopt("--state", str(pair.live / "a"))
    with pair.serve("a") as a, pair.serve("b") as b:
        for daemon in (a, b):
            daemon.wait_for("daemon.ready")
        told += await spend(pair.at["a"]) + await spend(pair.at["b"])
        assert told == LIMIT
        with run("quota", "show", "--at", pair.at["a"], "--json") as show:
            assert show.wait() == 0, show.output()
            whole = json.loads(show.output())["whole"]["acme"]
    assert (whole["spent"], whole["missing"], whole["fenced"]) == (LIMIT, 0, "")
