"""What goes wrong, when the plan says so: each fault begins, lasts, and is healed. All of it is written
to the history, with the names under which the others know the targets.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from bursar_lab.storm.clients import Clients
from bursar_lab.storm.engines import Engine
from bursar_lab.storm.history import SECOND_NS, History, now_ns, sleep_until
from bursar_lab.storm.nodes import Fleet, read_last_words
from bursar_lab.storm.places import Place
from bursar_lab.storm.worker import Worker

Item = dict[str, Any]
Heal = Callable[[], None]

REFUSE_TIMEOUT_S = 50.0
NAMES = {"client_kill": "kill", "client_pause": "pause", "worker_kill": "kill"}


class Nemesis:
    """`fence(name)` is what the operator does about a node whose state is gone."""

    def __init__(
        self,
        history: History,
        fleet: Fleet,
        clients: Clients,
        engine: Engine,
        place: Place,
        fence: Callable[[str], None],
        worker: Worker | None = None,
    ) -> None:
        self._history = history
        self._fleet = fleet
        self._clients = clients
        self._engine = engine
        self._place = place
        self._fence = fence
        self._worker = worker
        self.begun = 0
        self.missed: list[str] = []
        """Damage that a node did not notice."""
        self._threads: list[threading.Thread] = []

    def run(self, faults: Sequence[Item], begin_ns: int) -> None:
        """Returns when all are healed."""
        for item in faults:
            sleep_until(begin_ns + int(item["at"] * SECOND_NS))
            thread = threading.Thread(target=self._do, args=(item, begin_ns), daemon=True)
            thread.start()
            self._threads.append(thread)
            self.begun += 1
        for thread in self._threads:
            thread.join()

    def _do(self, item: Item, begin_ns: int) -> None:
        fault = item["fault"]
        act: Callable[[Item], tuple[list[str], Heal]] = getattr(self, f"_{fault}")
        at = now_ns()
        fields: Item = {"fault": NAMES.get(fault, fault)}
        if "jump_s" in item:
            fields["jump_ms"] = item["jump_s"] * 1000
        try:
            targets, heal = act(item)
        except Exception as error:  # noqa: BLE001 - the others go on, and this one is written down
            self._history.write("note", at=at, what="not done", fault=fault, why=repr(error)[:300])
            return
        self._history.write("fault", at=at, end=now_ns(), targets=targets, **fields)
        sleep_until(at + int(item["for"] * SECOND_NS))
        healed_at = now_ns()
        try:
            heal()
        except Exception as error:  # noqa: BLE001 - the others go on, and this one is written down
            self._history.write("note", at=healed_at, what="not healed", fault=fault, why=repr(error)[:300])
        self._history.write("heal", at=healed_at, end=now_ns(), targets=targets, fault=fields["fault"])

    # -- nodes

    def _up_again(self, slot: str) -> None:
        self._fleet.start(slot)
        self._await_ready(slot)

    def _await_ready(self, slot: str) -> None:
        if self._fleet.await_ready(slot):
            says = read_last_words(self._fleet.nodes[slot])
            self._history.write("note", at=now_ns(), what="not ready", node=slot, why=says)

    def _kill(self, item: Item) -> tuple[list[str], Heal]:
        (slot,) = item["targets"]
        self._fleet.kill(slot)
        return [slot], lambda: self._up_again(slot)

    def _stop(self, item: Item) -> tuple[list[str], Heal]:
        (slot,) = item["targets"]
        self._fleet.stop(slot)
        return [slot], lambda: self._up_again(slot)

    def _pause(self, item: Item) -> tuple[list[str], Heal]:
        (slot,) = item["targets"]
        self._fleet.signal(slot, signal.SIGSTOP)
        return [slot], lambda: self._fleet.signal(slot, signal.SIGCONT)

    def _clock(self, item: Item) -> tuple[list[str], Heal]:
        (slot,) = item["targets"]
        self._fleet.turn_clock(slot, item["jump_s"])
        return [slot], lambda: self._fleet.turn_clock(slot, 0.0)

    # -- disks

    def _disk_full(self, item: Item) -> tuple[list[str], Heal]:
        (slot,) = item["targets"]
        self._fleet.fill(slot)

        def heal() -> None:
            self._fleet.drain(slot)
            self._await_ready(slot)

        return [slot], heal

    def _disk_lost(self, item: Item) -> tuple[list[str], Heal]:
        (slot,) = item["targets"]
        self._fleet.kill(slot)
        self._fleet.lose_state(slot)

        def heal() -> None:
            self._fleet.kill(slot)  # whoever healed something else may have started it: it cannot be fenced
            self._fence(self._fleet.nodes[slot].name)
            self._up_again(slot)

        return [slot], heal

    def _torn(self, item: Item) -> tuple[list[str], Heal]:
        """A torn end is nobody's promise: the node cuts it off and says so, whatever else may ail it."""
        (slot,) = item["targets"]
        self._fleet.kill(slot)
        node = self._fleet.nodes[slot]
        torn, since = self._fleet.tear(slot, random.Random(item["seed"])), node.logged

        def heal() -> None:
            self._up_again(slot)
            said = node.said(since)  # it may have been started several times since, and found it once
            noticed = True if b"journal.cut" in said else False if node.ready else None
            self._note_damage(slot, "torn", torn, noticed)

        return [slot], heal

    def _flipped(self, item: Item) -> tuple[list[str], Heal]:
        """A promised record that cannot be read: the node refuses to start and names it. Then another
        node takes its place, and what the old one held is written off."""
        (slot,) = item["targets"]
        self._fleet.kill(slot)
        flipped = self._fleet.flip(slot, random.Random(item["seed"]))
        return [slot], lambda: self._restore(slot, flipped)

    def _restore(self, slot: str, flipped: list[str]) -> None:
        node = self._fleet.nodes[slot]
        if not flipped:
            self._up_again(slot)
            return
        self._fleet.start(slot)
        node.wanted = False  # nobody starts it again for what it will refuse again
        until = time.monotonic() + REFUSE_TIMEOUT_S
        while node.running and not node.ready and time.monotonic() < until:
            time.sleep(0.05)
        refused = node.ended_by_itself  # and was not killed by another fault meanwhile
        named = refused and flipped[0].split(" ")[0].encode() in node.said()
        self._note_damage(slot, "flipped", flipped, named if refused or node.ready else None)
        if not refused:
            node.wanted = True
            return
        gone = node.name
        self._fleet.replace(slot)
        self._fence(gone)
        self._up_again(slot)

    def _note_damage(self, slot: str, fault: str, where: list[str], noticed: bool | None) -> None:
        """None: it had not read its journals yet, when nobody waited for it any longer."""
        says = read_last_words(self._fleet.nodes[slot])
        self._history.write(
            "note", at=now_ns(), what="damage", fault=fault, node=slot, where=where, noticed=noticed, why=says
        )
        if where and noticed is False:
            self.missed.append(f"{fault} bytes of {slot} ({', '.join(where)}) were not noticed and named")

    # -- clients

    def _client_kill(self, item: Item) -> tuple[list[str], Heal]:
        (client,) = item["targets"]
        name = self._clients.name(client)
        self._clients.kill(client)
        return [name], lambda: self._clients.restart(client)

    def _client_pause(self, item: Item) -> tuple[list[str], Heal]:
        (client,) = item["targets"]
        name = self._clients.name(client)
        self._clients.signal(client, signal.SIGSTOP)
        return [name], lambda: self._clients.signal(client, signal.SIGCONT)

    def _worker_kill(self, item: Item) -> tuple[list[str], Heal]:
        assert self._worker is not None, "storms with tasks have one"
        self._worker.kill()
        return item["targets"], self._worker.restart

    # -- the engine

    def _engine_kill(self, item: Item) -> tuple[list[str], Heal]:
        return [self._engine.kill()], self._engine.heal

    def _engine_pause(self, item: Item) -> tuple[list[str], Heal]:
        return [self._engine.pause(False)], self._engine.heal

    def _engine_away(self, item: Item) -> tuple[list[str], Heal]:
        return self._engine.pause(True).split(","), self._engine.heal

    def _engine_slow(self, item: Item) -> tuple[list[str], Heal]:
        return self._engine.slow().split(","), self._engine.heal

    # -- the network

    def _cut(self, item: Item) -> tuple[list[str], Heal]:
        node, *others = item["targets"]
        for other in others:
            self._place.cut(node, other)
            self._place.cut(other, node)
        return item["targets"], lambda: self._join(item["targets"])

    def _one_way(self, item: Item) -> tuple[list[str], Heal]:
        """The node hears nothing of the others and they hear it; or, `mute`, the other way round."""
        node, *others = item["targets"]
        for other in others:
            self._place.cut(*((other, node) if item["mute"] else (node, other)))
        return item["targets"], lambda: self._join(item["targets"])

    def _loss(self, item: Item) -> tuple[list[str], Heal]:
        (node,) = item["targets"]
        self._place.lose(node, item["part"])
        return [node], lambda: self._join([node])

    def _delay(self, item: Item) -> tuple[list[str], Heal]:
        (node,) = item["targets"]
        self._place.slow(node)
        return [node], lambda: self._join([node])

    def _join(self, members: list[str]) -> None:
        for member in members:
            self._place.heal(member)
