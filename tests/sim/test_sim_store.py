"""The simulated store: it keeps the contract of every store, and loses what a network loses."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from small_runs import run_nodes, sleep

from bursar.errors import NodeExistsError, SessionExpiredError, StoreUnknownError
from bursar.sim.chance import Chance
from bursar.sim.clock import DriftingClock
from bursar.sim.faults import Faults
from bursar.sim.loop import Life, VirtualLoop
from bursar.sim.network import Fabric
from bursar.sim.node import Spawner
from bursar.sim.simulation import Simulation
from bursar.sim.store import STORE, SimStore, StoreServer
from bursar.sim.trace import History
from bursar.world import MILLISECOND_NS, SECOND_NS, Store, World
from stores.contract import TIMEOUT_NS, StoreContract


class SimVenue:
    """Sessions of nodes that live for ever, on one store."""

    patience_s = 5.0

    def __init__(self, loop: VirtualLoop) -> None:
        history = History(loop, None)
        fabric = Fabric(loop, Chance(1), history, Faults())
        self.server = StoreServer(loop, Chance(1), fabric, history)
        self.life = Life("tester", 1)
        self.clock = DriftingClock(loop, self.life, 0, 0)
        self._loop = loop
        self._spawn = Spawner(loop, self.life, self._fail)

    async def open(self, timeout_ns: int = TIMEOUT_NS) -> SimStore:
        store = SimStore(self.server, self._loop, self.life, self.clock, self._spawn, timeout_ns)
        assert store.session
        return store

    async def expire(self, store: Store) -> None:
        self.server.tree.sessions[store.session].expires_ns = 0
        self.server.tree.expire_due(self.clock.now())

    def _fail(self, life: Life, task: str, error: BaseException) -> None:
        raise error


def in_virtual_time(test: Callable[..., Any]) -> Callable[..., None]:
    """The same test, run to its end on a loop of the simulator with a fresh store."""

    @functools.wraps(test)
    def run(self: Any, **given: Any) -> None:
        loop = VirtualLoop()
        task = loop.create_task(test(self, venue=SimVenue(loop), **given))
        loop.run(600 * SECOND_NS)
        loop.close()
        task.result()

    signature = inspect.signature(test)
    kept = [parameter for name, parameter in signature.parameters.items() if name != "venue"]
    run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return run


TestSimStore = type(
    "TestSimStore",
    (),
    {name: in_virtual_time(test) for name, test in vars(StoreContract).items() if name.startswith("test_")},
)


async def read_back(world: World) -> bool:
    while True:
        try:
            return await world.store.exists("/a") is not None
        except StoreUnknownError:
            continue
        except SessionExpiredError:
            with contextlib.suppress(StoreUnknownError):
                await world.store.renew()


def outcomes(faults: Faults, seeds: int = 30) -> list[tuple[str, bool]]:
    """For each seed: what a create said, and whether the node is there afterwards."""
    found: list[tuple[str, bool]] = []

    async def boot(world: World) -> None:
        try:
            said = await world.store.create("/a")
        except StoreUnknownError:
            said = "unknown"
        found.append((said, await read_back(world)))

    for seed in range(seeds):
        run_nodes({"a": boot}, seed=seed, faults=faults)
    assert len(found) == seeds
    return found


def test_a_lost_reply_leaves_open_whether_it_happened() -> None:
    found = outcomes(Faults(store_lost=0.5))
    assert set(found) == {("/a", True), ("unknown", True), ("unknown", False)}


def test_a_quiet_store_answers_everything() -> None:
    assert set(outcomes(Faults(), 5)) == {("/a", True)}


def test_a_request_that_was_sent_is_done_though_its_sender_dies() -> None:
    async def boot(world: World) -> None:
        if world.incarnation == 1:
            await world.store.create("/a")
            raise AssertionError("it should have died first")
        await world.clock.sleep(SECOND_NS)
        with pytest.raises(NodeExistsError):
            await world.store.create("/a")
        done.append(True)

    async def crash(sim: Simulation) -> None:
        await sleep(sim, 40_000)
        sim.crash("a", SECOND_NS)

    done: list[bool] = []
    run_nodes({"a": boot}, crash)
    assert done == [True]


@pytest.mark.parametrize("seed", range(5))
def test_a_session_expires_no_earlier_than_it_is_trusted(seed: int) -> None:
    trusted: list[int] = []
    gone_ns: list[int] = []

    async def boot_a(world: World) -> None:
        await world.store.create("/e", ephemeral=True)
        await world.clock.sleep(3 * SECOND_NS)
        trusted.append(sims[0].node("a").clock.true_ns(world.store.trusted_until()))
        with pytest.raises((SessionExpiredError, StoreUnknownError)):
            await world.store.get("/e")

    async def boot_b(world: World) -> None:
        watch = await world.store.watch("/e")
        while not trusted or await world.store.exists("/e") is not None:
            await watch.changed()
            gone_ns[:] = [sims[0].now_ns]

    async def cut(sim: Simulation) -> None:
        sims.append(sim)
        await sleep(sim, SECOND_NS + 300 * MILLISECOND_NS)
        sim.fabric.cut([("a", STORE), (STORE, "a")])

    sims: list[Simulation] = []
    run_nodes({"a": boot_a, "b": boot_b}, cut, seed=seed, faults=Faults(drift=True))
    assert gone_ns and trusted[0] <= gone_ns[0]


def test_a_crashed_nodes_session_lives_until_its_timeout() -> None:
    seen: list[bool] = []

    async def boot(world: World) -> None:
        if world.incarnation == 1:
            await world.store.create("/e", ephemeral=True)
            return
        seen.append(await world.store.exists("/e") is not None)
        await world.clock.sleep(3 * SECOND_NS)
        seen.append(await world.store.exists("/e") is not None)

    async def crash(sim: Simulation) -> None:
        await sleep(sim, SECOND_NS)
        sim.crash("a", 100 * MILLISECOND_NS)

    run_nodes({"a": boot}, crash)
    assert seen == [True, False]


def read_while_another_writes(faults: Faults, sync: bool, seed: int) -> list[tuple[int, int]]:
    """Pairs (what was read, what had been written by then)."""
    written = [0]
    pairs: list[tuple[int, int]] = []

    async def boot_a(world: World) -> None:
        await world.store.create("/n", b"0")
        for number in range(1, 60):
            await world.store.set("/n", b"%d" % number)
            written[0] = number
            assert int((await world.store.get("/n"))[0]) == number, "a session sees what it wrote"

    async def boot_b(world: World) -> None:
        await world.clock.sleep(10 * MILLISECOND_NS)
        await world.store.sync()  # otherwise the node may not be there yet
        while written[0] < 59:
            await world.clock.sleep(5 * MILLISECOND_NS)
            before = written[0]
            if sync:
                await world.store.sync()
            pairs.append((int((await world.store.get("/n"))[0]), before))

    run_nodes({"a": boot_a, "b": boot_b}, seed=seed, faults=faults)
    return pairs


@pytest.mark.parametrize("seed", range(4))
def test_stale_reads_lag_behind_but_never_go_back(seed: int) -> None:
    pairs = read_while_another_writes(Faults(store_stale=0.5), False, seed)
    assert any(read < before for read, before in pairs)
    reads = [read for read, _ in pairs]
    assert reads == sorted(reads)


@pytest.mark.parametrize(("stale", "sync"), [(0.0, False), (0.9, True)])
def test_reads_are_fresh_without_the_fault_and_after_a_sync(stale: float, sync: bool) -> None:
    pairs = read_while_another_writes(Faults(store_stale=stale), sync, 1)
    assert len(pairs) > 10
    assert all(read >= before for read, before in pairs)


@pytest.mark.parametrize("seed", range(8))
def test_who_watches_and_reads_after_each_notice_sees_the_last_change_of_a_lagging_store(seed: int) -> None:
    seen: list[bytes] = []

    async def boot_a(world: World) -> None:
        await world.store.create("/n", b"0")
        for number in range(1, 20):
            await world.store.set("/n", b"%d" % number)

    async def boot_b(world: World) -> None:
        await world.clock.sleep(12 * MILLISECOND_NS)
        await world.store.sync()
        watch = await world.store.watch("/n")
        while True:
            seen.append((await world.store.get("/n"))[0])
            await watch.changed()

    run_nodes({"a": boot_a, "b": boot_b}, seed=seed, faults=Faults(store_stale=0.9))
    assert seen[-1] == b"19"
