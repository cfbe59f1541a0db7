"""One storm, from an empty folder to a verdict."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import bursar
from bursar.errors import BursarError
from bursar_lab.storm.clients import Clients, start_process, stop_process
from bursar_lab.storm.clocks import can_turn
from bursar_lab.storm.engines import Engine, Words, name_server, open_engine
from bursar_lab.storm.history import SECOND_NS, Counter, History, now_ns
from bursar_lab.storm.namespaces import NamespacePlace, find_hindrance
from bursar_lab.storm.nemesis import Nemesis
from bursar_lab.storm.nodes import Fleet
from bursar_lab.storm.operator import Operator
from bursar_lab.storm.places import OPERATOR, LoopbackPlace, Place
from bursar_lab.storm.plan import SPARE, Ability, Plan
from bursar_lab.storm.policies import RESOURCES, kinds_of
from bursar_lab.storm.worker import Worker

MEMORY = Path("/dev/shm")
TELL_S = 5.0
TEND_S = 0.25
JOIN_S = 25.0
START_S = 60.0
"""Of the first start, which may find everything uncompiled and the machine busy."""

TAKEN_S = 60.0
HEAL_S = 60.0

Tell = Callable[[str], None]


def find_ability(namespaces: bool = True) -> Ability:
    """What this machine lets a storm do; what it does not is named."""
    left_out = []
    hindrance = find_hindrance() if namespaces else "not asked for"
    if hindrance:
        left_out.append(f"cut, one_way, loss, delay: {hindrance}")
    mounts = os.geteuid() == 0 and shutil.which("mount") is not None
    if not mounts:
        left_out.append("disk_full: a small disk of its own takes root")
    clocks = can_turn()
    if not clocks:
        left_out.append("clock: a clock is turned by a library, which takes a C compiler (cc)")
    http = find_spec("httpx") is not None
    if not http:
        left_out.append("HTTP clients: httpx is not installed")
    return Ability(not hindrance, mounts, clocks, http, tokens=True, left_out=left_out)


@contextmanager
def keep_in_memory(folder: Path) -> Iterator[None]:
    """Its files are written where no disk keeps the writer waiting, and moved to it at the end: a client that
    waits for the disk of the nodes while it writes down an answer would have had the answer late."""
    if not MEMORY.is_dir():
        folder.mkdir()
        yield
        return
    kept = Path(tempfile.mkdtemp(prefix="bursar-storm-", dir=MEMORY))
    folder.symlink_to(kept)
    try:
        yield
    finally:
        moved = folder.with_name(f"{folder.name}.moved")
        shutil.copytree(kept, moved)
        folder.unlink()
        moved.rename(folder)
        shutil.rmtree(kept)


class Storm:
    """A plan that is carried out in a folder."""

    def __init__(self, plan: Plan, folder: Path, command: str, tell: Tell = print) -> None:
        self.plan = plan
        self.folder = folder
        self._command = command
        self._tell = tell
        self._others: list[subprocess.Popen[bytes]] = []
        self._worker: Worker | None = None
        self.missed: list[str] = []

    def run(self) -> None:
        """Leaves the folder; raises BursarError if the storm itself could not be set up."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / "history").exists():
            raise BursarError(f"{self.folder} holds another storm: give a new folder with --out")
        self._describe()
        place = self._open_place()
        try:
            with ExitStack() as stack:
                for name in ("history", "logs"):
                    stack.enter_context(keep_in_memory(self.folder / name))
                engine = open_engine(self.plan.store, place, self.folder, self.plan.servers)
                stack.callback(engine.stop)
                policies = self.plan.policies
                if "pool" in kinds_of(self.plan.kind):
                    words = Words(place, self.folder)
                    stack.callback(words.stop)
                    policies = [text.replace("@words@", words.address) for text in policies]
                self._run_on(place, engine, policies)
        finally:
            place.close()

    def _describe(self) -> None:
        plan = self.plan
        about = {
            "kind": plan.kind,
            "seed": plan.seed,
            "minutes": plan.seconds / 60,
            "store": plan.store,
            "nodes": plan.nodes,
            "settings": plan.settings,
            "namespaces": plan.namespaces,
            "left_out": plan.left_out,
            "planted": plan.planted,
            "versions": {"bursar": bursar.__version__, "python": platform.python_version()},
            "command": self._command,
        }
        (self.folder / "storm.json").write_text(json.dumps(about, indent=1) + "\n")
        plan.write(self.folder / "plan.json")

    def _open_place(self) -> Place:
        nodes = [*self.plan.nodes, SPARE]
        if not self.plan.namespaces:
            return LoopbackPlace(nodes)
        others = [client["name"] for client in self.plan.clients] + [OPERATOR]
        if "pool" in kinds_of(self.plan.kind):
            others.append(Words.MEMBER)
        if self.plan.store != "sqlite":
            others += [name_server(number) for number in range(self.plan.servers)]
        return NamespacePlace(nodes, others, self.folder / "certificates")

    # -- the run

    def _run_on(self, place: Place, engine: Engine, policies: list[str]) -> None:
        histories = {name: self._history(name) for name in ("fleet", "operator", "nemesis")}
        fleet = Fleet(self.folder, place, engine.url, histories["fleet"], self.plan.planted)
        clients: Clients | None = None
        try:
            self._start_witness()
            self._start_nodes(fleet)
            operator = Operator(self.folder, place, engine.url, fleet, histories["operator"], policies)
            self._apply_first(operator)
            for item in self.plan.tokens:
                operator.make_token(item["token"], item["scopes"])
            clients = Clients(self.folder, place, self.plan.seconds, self.plan.planted)
            if self.plan.tokens:
                operator.let_join()
            self._start_others(place, operator, histories["fleet"])
            self._start_clients(place, clients, operator)
            begin_ns = clients.begin()
            self._start_prober(place, begin_ns, operator)
            nemesis = Nemesis(
                histories["nemesis"], fleet, clients, engine, place, operator.fence, self._worker
            )
            self._weather(nemesis, operator, fleet, begin_ns)
            clients.join(JOIN_S, histories["fleet"])
            self._prober.wait(JOIN_S)
            self.missed = [*nemesis.missed, *clients.crashed, *fleet.list_absent(*self.plan.nodes)]
        finally:
            if clients is not None:
                clients.close()
            if self._worker is not None:
                self._worker.stop()
            for process in self._others:
                stop_process(process)
            fleet.close()

    def _history(self, name: str) -> History:
        return History(self.folder / "history" / f"{name}.jsonl")

    def _start_nodes(self, fleet: Fleet) -> None:
        faults = {(item["fault"], target) for item in self.plan.faults for target in item["targets"]}
        for slot in self.plan.nodes:
            node = fleet.add(slot)
            node.drift_ppm = self.plan.drifts.get(slot, 0)
            node.turned = ("clock", slot) in faults or bool(node.drift_ppm)
            if ("disk_full", slot) in faults:
                fleet.mount(slot)
            fleet.start(slot)
        late = fleet.await_ready(*self.plan.nodes, timeout_s=START_S)
        if late:
            node = fleet.nodes[late[0]]
            assert node.process is not None, "it was started"
            raise node.process.fail(f"node {late[0]} was not ready in time")

    def _apply_first(self, operator: Operator) -> None:
        if not operator.apply(1) or not operator.await_taken(TAKEN_S):
            raise BursarError(f"the first policy was not applied; see {self.folder}/history/operator.jsonl")

    def _start_witness(self) -> None:
        path = str(self.folder / "history" / "witness.jsonl")
        self._start([sys.executable, "-m", "bursar_lab.storm.witness", path], "witness")

    def _start(self, command: list[str], name: str) -> None:
        self._others.append(start_process(command, self.folder / "logs" / f"{name}.log"))

    def _start_others(self, place: Place, operator: Operator, history: History) -> None:
        if "claim" not in kinds_of(self.plan.kind):
            return
        guard = [sys.executable, "-m", "bursar_lab.storm.guard_process", self._socket]
        self._start([*guard, str(self.folder / "history" / "guard.jsonl")], "guard")
        work = [
            sys.executable,
            "-m",
            "bursar",
            "work",
            "bursar_lab.storm.shop:b",
            "--policy",
            str(operator.file),
        ]
        command = place.command(OPERATOR, [*work, "--name", "worker"])
        self._worker = Worker(command, self.folder / "logs" / "worker.log", history)

    @property
    def _socket(self) -> str:
        """Short: the path of a socket has an end at a hundred bytes."""
        return f"/tmp/bursar-storm-{os.getpid()}.guard"

    def _start_clients(self, place: Place, clients: Clients, operator: Operator) -> None:
        claims = "claim" in kinds_of(self.plan.kind)
        for spec in self.plan.clients:
            order = spec["nodes"]
            addresses = [place.address(slot) for slot in order]
            turned = addresses[1:] + addresses[:1]
            scheme = "https" if place.tls else "http"
            extra = {
                "urls": ["bursar://" + ",".join(addresses), "bursar://" + ",".join(turned)],
                "http": [f"{scheme}://{place.http(slot)}" for slot in order],
                "guard": self._socket if claims else None,
                "secret": operator.tokens.get(spec.get("token", "")),
            }
            clients.start(spec, extra)

    def _start_prober(self, place: Place, begin_ns: int, operator: Operator) -> None:
        files = place.certificate(OPERATOR)
        nodes = {
            slot: {"url": f"bursar://{place.address(slot)}", "http": place.http(slot)}
            for slot in self.plan.nodes
        }
        spec = {
            "history": str(self.folder / "history" / "prober.jsonl"),
            "begin_ns": begin_ns,
            "end_ns": begin_ns + int(self.plan.seconds * SECOND_NS),
            "quiet_ns": begin_ns + int(self.plan.quiet_s * SECOND_NS),
            "nodes": nodes,
            "resources": {RESOURCES[kind]: kind for kind in kinds_of(self.plan.kind)},
            "tls": None if files is None else files.table(),
            "https": place.tls,
            "certificate": OPERATOR,
            "secret": operator.tokens.get("usual"),
            "token": "usual" if self.plan.tokens else None,
        }
        path = self.folder / "specs" / "prober.json"
        path.write_text(json.dumps(spec))
        command = [sys.executable, "-m", "bursar_lab.storm.prober_process", str(path)]
        self._start(place.command(OPERATOR, command), "prober")
        self._prober = self._others[-1]

    def _weather(self, nemesis: Nemesis, operator: Operator, fleet: Fleet, begin_ns: int) -> None:
        """Faults and changes go their ways; here the fleet is tended, and what happens is told."""
        doing = [
            threading.Thread(target=nemesis.run, args=(self.plan.faults, begin_ns), daemon=True),
            threading.Thread(target=operator.run, args=(self.plan.changes, begin_ns), daemon=True),
        ]
        for thread in doing:
            thread.start()
        end_ns = begin_ns + int(self.plan.seconds * SECOND_NS)
        counter, told_at = Counter(self.folder / "history"), 0.0
        while now_ns() < end_ns:
            fleet.tend()
            if self._worker is not None:
                self._worker.tend()
            if time.monotonic() - told_at >= TELL_S:
                told_at = time.monotonic()
                left_s = max(0.0, (end_ns - now_ns()) / SECOND_NS)
                up = sum(node.running for node in fleet.nodes.values())
                self._tell(
                    f"  {left_s:4.0f} s left, {counter.count():6,} operations, {nemesis.begun} faults, "
                    f"{operator.done} changes, {up} nodes run"
                )
            time.sleep(TEND_S)
        for thread in doing:
            thread.join(HEAL_S)
            if thread.is_alive():
                raise BursarError(f"a fault or a change did not end within {HEAL_S:g} s: see {self.folder}")


def tidy(folder: Path) -> None:
    """What only the run itself needed."""
    for name in ("state", "certificates", "specs"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in folder.glob("store.db*"):
        path.unlink()
