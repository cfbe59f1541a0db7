"""A fleet of real daemons, seen through any one of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

import bursar
from bursar.cli import main
from bursar.dashboard.fleet import FleetSource
from bursar.dashboard.source import Reading
from bursar.policy import load
from bursar.runtime.client import Bursar
from bursar.runtime.daemon import Daemon

POLICY = """
store = "sqlite://{folder}/store.db"
[daemon]
name = "{name}"
listen = "127.0.0.1:0"
http = "off"
state = "{folder}/{name}"
[resource.disk]
kind = "share"
capacity = "500/s"
[resource.disk.tenant]
simulation = {{ weight = 3 }}
backup = {{}}
"""
MORE = (
    POLICY
    + """
[resource.tape]
kind = "share"
capacity = "10/s"
[resource.tape.tenant]
backup = {{}}
"""
)
PATIENCE_S = 20.0


class Fleet:
    """Daemons of one store, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, Daemon] = {}

    async def start(self, name: str) -> None:
        path = self.write(name, POLICY)
        self.daemons[name] = await Daemon.open(load(path), str(path))

    def write(self, name: str, text: str) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(text.format(folder=self.folder, name=name))
        return path

    def url(self, name: str) -> str:
        return f"bursar://{self.daemons[name].host.world.listening}"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path)
    for name in ("a", "b"):
        await fleet.start(name)
    yield fleet
    for daemon in fleet.daemons.values():
        await daemon.close()


@pytest.fixture
async def source(fleet: Fleet) -> AsyncIterator[FleetSource]:
    """It is told of a alone."""
    source = FleetSource([fleet.url("a")], connect)
    await source.open()
    yield source
    await source.close()


async def connect(url: str) -> Bursar:
    return await bursar.connect(url, timeout=2.0)


async def read_until(source: FleetSource, condition: Callable[[Reading], bool]) -> Reading:
    async with asyncio.timeout(PATIENCE_S):
        while not condition(reading := await source.read()):
            await asyncio.sleep(0.02)
    return reading


async def test_one_address_is_enough_to_see_every_node(fleet: Fleet, source: FleetSource) -> None:
    async with await bursar.connect(fleet.url("b")) as b, b.resource("disk").acquire("backup", 3, wait=5):
        pass
    reading = await read_until(source, lambda reading: set(reading.totals) == {"a", "b"})
    assert reading.silent == {}
    assert {node: totals["disk"].granted for node, totals in reading.totals.items()} == {"a": 0, "b": 3}
    assert reading.statistics["disk"]["tenants"]["backup"]["granted"] == 3
    for name, daemon in fleet.daemons.items():
        assert reading.nodes[name] == daemon.host.membership.follower.record
        assert reading.nodes[name].version == 1 and reading.nodes[name].build


async def test_the_fleet_is_seen_when_the_node_that_was_named_is_gone(
    fleet: Fleet, source: FleetSource
) -> None:
    await read_until(source, lambda reading: set(reading.totals) == {"a", "b"})
    await fleet.daemons.pop("a").close()
    reading = await read_until(source, lambda reading: set(reading.nodes) == {"b"})
    assert set(reading.totals) == {"b"} and set(reading.silent) == {"a"}
    assert "disk" in reading.statistics


async def test_a_node_that_comes_and_goes_is_seen_and_forgotten(fleet: Fleet, source: FleetSource) -> None:
    await fleet.start("c")
    await read_until(source, lambda reading: set(reading.totals) == {"a", "b", "c"})
    await fleet.daemons.pop("c").close()
    reading = await read_until(source, lambda reading: set(reading.nodes) == {"a", "b"})
    assert reading.silent == {} and set(reading.totals) == {"a", "b"}


async def test_a_resource_that_a_new_policy_brings_is_seen_at_every_node(
    fleet: Fleet, source: FleetSource
) -> None:
    await read_until(source, lambda reading: set(reading.totals) == {"a", "b"})
    fleet.write("a", MORE)
    await fleet.daemons["a"].reload()
    reading = await read_until(
        source, lambda reading: all("tape" in totals for totals in reading.totals.values())
    )
    assert set(reading.totals) == {"a", "b"} and reading.kinds["tape"] == "share"
    assert {record.version for record in reading.nodes.values()} == {2}


async def test_of_very_many_tenants_the_busiest_are_read_and_whom_one_looks_for(
    fleet: Fleet, source: FleetSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bursar.dashboard.fleet.TENANTS_READ", 1)
    async with await bursar.connect(fleet.url("a")) as b, b.resource("disk").acquire("backup", 3, wait=5):
        pass
    await read_until(source, lambda reading: reading.totals.get("a", {})["disk"].granted == 3)
    found = {find: (await source.read((find,) if find else ())).statistics["disk"] for find in ("", "SIMUL")}
    assert "backup" in found[""]["tenants"] and found[""]["totals"]["tenants"] == 2
    assert set(found["SIMUL"]["tenants"]) == {"backup", "simulation"}


async def test_a_client_is_told_the_fleet_embedded_too(fleet: Fleet, tmp_path: Path) -> None:
    async with await bursar.connect(fleet.url("b")) as b:
        told = await b.fleet()
    assert told.name == "b" and set(told.nodes) >= {"b"}
    async with await bursar.connect(make_alone(tmp_path)) as b:
        assert set((await b.fleet()).nodes) == {(await b.fleet()).name}


def make_alone(folder: Path) -> Path:
    path = folder / "alone.toml"
    path.write_text('[resource.disk]\nkind = "share"\ncapacity = "50/s"\n')
    return path


def run_top(*arguments: str) -> None:
    with suppress(SystemExit):
        main(["top", "--every", "0.1", *arguments])


async def test_top_prints_the_fleet_once(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    await asyncio.to_thread(run_top, "--at", fleet.url("b"), "--once")
    text = capsys.readouterr().out
    for word in ("a", "b", "127.0.0.1:", "disk", "share", "2 of 2", "simulation", "backup"):
        assert word in text, text
    assert len(text.splitlines()[2]) <= 80


async def test_top_prints_json_and_finds_tenants(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    await asyncio.to_thread(run_top, "--at", fleet.url("a"), "--json", "--find", "BACK", "--sort", "name")
    found = json.loads(capsys.readouterr().out)
    assert [node["node"] for node in found["nodes"]] == ["a", "b"]
    assert [row["tenant"] for row in found["tenants"]] == ["backup"] and found["tenants_found"] == 1
    assert found["resources"][0]["ready"] == "2 of 2" and found["resources"][0]["granted_s"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--every", "0"), "--every is at least"),
        (("--at", "http://x"), "is not the address of a daemon"),
        ((), "add --once"),
    ],
)
def test_what_top_cannot_do_is_said(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["top", *arguments])
    assert left.value.code == 2 and said in capsys.readouterr().err
