"""A fleet's store, moved to another engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from bursar.cli import make_app
from bursar.errors import UsageError
from bursar.fleet import audit, copying, layout
from bursar.fleet.identity import check_identity, identify, read_identity
from bursar.runtime.clock import BootClock
from bursar.stores import open_store
from bursar.world import Create, Store


async def fill(store: Store) -> None:
    await identify(store, "first")
    for number in range(3):
        await store.transact([audit.record("test", number, "policy", f"version {number}")])
    await store.transact([Create("/late", b"x" * 1000), Create("/late/below")])
    await store.create("/last")
    await store.create("/late/then")


async def open_pair(tmp_path: Path) -> tuple[Store, Store]:
    clock = BootClock()
    one = await open_store(f"sqlite://{tmp_path}/one.db", clock=clock)
    return one, await open_store(f"sqlite://{tmp_path}/two.db", clock=clock)


async def test_a_copy_has_all_nodes_in_their_order_and_a_new_epoch(tmp_path: Path) -> None:
    one, two = await open_pair(tmp_path)
    await fill(one)
    count, copied = await copying.copy(one, two, "two", by="test", at_ns=7)
    assert (copied.uuid, copied.epoch) == ("first", 2)
    assert await two.get("/late") == (b"x" * 1000, (await two.get("/late"))[1])
    order = [(await two.get(path))[1].created for path in ("/late", "/late/below", "/last", "/late/then")]
    assert order[0] == order[1] < order[2] < order[3]
    names = [entry.name for entry in await audit.list_entries(two)]
    assert names == ["version 0", "version 1", "version 2", "first"]
    assert count >= 7
    sealed = await read_identity(one)
    assert sealed is not None
    with pytest.raises(UsageError, match="was copied to two"):
        check_identity(None, sealed, "one", "state")
    check_identity(layout.Identity(uuid="first"), copied, "two", "state")
    for store in (one, two):
        await store.close()


async def test_what_is_in_use_or_not_empty_is_not_copied(tmp_path: Path) -> None:
    one, two = await open_pair(tmp_path)
    with pytest.raises(UsageError, match="is empty"):
        await copying.copy(one, two, "two", by="test", at_ns=0)
    await fill(one)
    await one.create("/up", ephemeral=True)
    with pytest.raises(UsageError, match="/up belongs to somebody"):
        await copying.copy(one, two, "two", by="test", at_ns=0)
    await one.delete("/up")
    await two.create("/something")
    with pytest.raises(UsageError, match="not empty"):
        await copying.copy(one, two, "two", by="test", at_ns=0)
    await two.delete("/something")
    await copying.copy(one, two, "two", by="test", at_ns=0)
    three = await open_store("memory://", clock=BootClock())
    with pytest.raises(UsageError, match="copied to two before"):
        await copying.copy(one, three, "three", by="test", at_ns=0)
    for store in (one, two, three):
        await store.close()


def test_a_store_is_looked_at_and_copied_from_the_command_line(tmp_path: Path) -> None:
    def run(arguments: list[str]) -> Result:
        return CliRunner().invoke(make_app(arguments[:1]), arguments)

    one, two = f"sqlite://{tmp_path}/one.db", f"sqlite://{tmp_path}/two.db"
    policy = tmp_path / "policy.toml"
    policy.write_text('[resource.jobs]\nkind = "claim"\n')
    assert run(["apply", str(policy), "--store", one, "--yes"]).exit_code == 0
    looked = run(["store", "check", one, "--json"])
    found = json.loads(looked.stdout)
    assert looked.exit_code == 0, looked.output
    assert found["engine"] == "sqlite" and found["problems"] == []
    assert found["figures"]["changes a second, 32 at a time"] > 0
    assert isinstance(run(["store", "copy", one, two]).exception, UsageError)
    done = run(["store", "copy", one, two, "--yes"])
    assert done.exit_code == 0 and "nodes copied" in done.output, done.output
    shown = json.loads(run(["store", "show", "--store", two]).stdout)
    assert (shown["policy_version"], shown["epoch"], shown["sealed"]) == (1, 2, "")
    assert two in json.loads(run(["store", "show", "--store", one]).stdout)["sealed"]
