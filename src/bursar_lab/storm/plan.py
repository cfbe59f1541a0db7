"""What a run does, all of it drawn by the seed before it begins: texts, clients, changes and faults, each
with its time. What a run *finds* depends on the machine; what it *does* does not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bursar_lab.storm.policies import NAMES, RESOURCES, draw_text, kinds_of

Item = dict[str, Any]

SLOTS = "abcdefghi"
SPARE = "z"
"""The node that joins and leaves while it runs."""

CALMS_S = ((40.0, 7.0), (90.0, 14.0), (float("inf"), 45.0))
"""How long it is quiet at the end of a storm that is shorter than so many seconds. A node whose session
expired, and a budget that has to be gathered again, take their time; a short storm does not wait for it."""

BEGIN_S = 3.0
ROUGH_S, REST_S = 40.0, 18.0
"""Faults and changes come in stretches, with calm ones between in which reservations are due. A storm of
less than two minutes has its calm at the end alone."""

RESTS_FROM_S = 120.0
GAP_S = (0.7, 4.5)
LONG_S = (11.0, 15.0)
"""Longer than the timeout of a session."""

OUTAGE_FROM_S = 480.0
OUTAGE_S = (70.0, 140.0)
"""A storm so long has the engine away once for minutes, whatever else goes on and whoever rests."""

APART_S = 75.0
"""Between two ledgers that are lost: what they held is written off, and must not be everything."""

AFTER_S = 6.0
"""A node that was down is left alone for so long after it was started."""

CLIENT_RATE = 18.0
SIDE_RATE = 4.0
RIGHTS = 0.4
"""How many storms have tokens."""

SPOILT = 0.5
"""How many storms lose and spoil disks. In the others no ledger is ever lost, so that the books of quotas
can be judged to the unit."""

CAPACITIES = (120, 2_000)
"""Of a server of a rate, a second: small, so that it is contended; or large enough for lots."""

DRIFT_PPM = 900
"""Within `drift_ppm` (1000 by default) of what is promised for clocks."""

TEXTS = 4
CHANGE_GAP_S = (2.0, 5.0)


@dataclass
class Plan:
    kind: str
    seed: int
    seconds: float
    store: str
    nodes: list[str]
    settings: str
    namespaces: bool
    left_out: list[str]
    """Faults that this machine cannot do, and why."""
    policies: list[str] = field(default_factory=list)
    clients: list[Item] = field(default_factory=list)
    changes: list[Item] = field(default_factory=list)
    faults: list[Item] = field(default_factory=list)
    tokens: list[Item] = field(default_factory=list)
    """Rights that are given out before the clients come; none: everybody may do everything."""
    drifts: dict[str, int] = field(default_factory=dict)
    """By how many millionths a node's clocks run fast, or slow if negative."""
    planted: str = ""
    """The bug that nodes and clients are started with (`planted`)."""

    @property
    def quiet_s(self) -> float:
        """From when on nothing goes wrong any more."""
        return self.seconds - next(calm_s for below_s, calm_s in CALMS_S if self.seconds < below_s)

    @property
    def servers(self) -> int:
        """Of an engine that has several: PostgreSQL a primary and a standby."""
        return 2 if self.store == "postgresql" else 3

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read_plan(path: Path) -> Plan:
    return Plan(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Ability:
    """What can be done to this machine."""

    namespaces: bool
    mounts: bool
    clocks: bool
    http: bool
    tokens: bool
    left_out: list[str]


def draw_plan(
    kind: str, seed: int, seconds: float, store: str, nodes: int, settings: str, ability: Ability
) -> Plan:
    from bursar_lab.storm.settings import draw_settings

    slots = list(SLOTS[:nodes])
    plan = Plan(kind, seed, seconds, store, slots, settings, ability.namespaces, list(ability.left_out))
    rng = random.Random(f"{seed}/policy")
    drawn = draw_settings(rng, kind) if settings == "drawn" else {}
    capacity = random.Random(f"{seed}/capacity").choice(CAPACITIES)
    plan.policies = [draw_text(rng, kind, slots, drawn, capacity) for _ in range(TEXTS)]
    plan.clients = draw_clients(random.Random(f"{seed}/clients"), plan, ability)
    if ability.tokens and random.Random(f"{seed}/rights").random() < RIGHTS:
        give_rights(plan, ability)
    plan.faults = draw_faults(random.Random(f"{seed}/faults"), plan, ability)
    plan.changes = draw_changes(random.Random(f"{seed}/changes"), plan)
    plan.drifts = draw_drifts(random.Random(f"{seed}/drifts"), plan, ability)
    if plan.tokens:
        revoke = {"at": round(plan.quiet_s * 0.6, 3), "do": "revoke", "token": "brief"}
        plan.changes = sorted([*plan.changes, revoke], key=lambda item: float(item["at"]))
    return plan


def draw_clients(rng: random.Random, plan: Plan, ability: Ability) -> list[Item]:
    ways = ["async", "sync", "http" if ability.http else "async"]
    clients: list[Item] = []
    for number, via in enumerate(ways, start=1):
        order = rng.sample(plan.nodes, len(plan.nodes))
        item: Item = {"name": f"c{number}", "via": via, "seed": f"{plan.seed}/c{number}", "kind": plan.kind}
        clients.append(item | {"nodes": order, "rate": CLIENT_RATE, "program": "mixed", "keep": None})
    if set(kinds_of(plan.kind)) & {"rate", "share", "pool"}:
        steady: Item = {"name": "gold", "via": "async", "seed": f"{plan.seed}/gold", "kind": plan.kind}
        clients.append(steady | {"nodes": list(plan.nodes), "rate": 0.0, "program": "steady", "keep": None})
    return clients


def give_rights(plan: Plan, ability: Ability) -> None:
    """A token for the usual clients, one for a single tenant, one that is revoked, and one who has none."""
    both = ["acquire", "read"]
    resource = RESOURCES[kinds_of(plan.kind)[0]]
    for client in plan.clients:
        client["token"] = "usual"
    plan.tokens = [
        {"token": "usual", "scopes": [{"resources": ["*"], "tenants": ["*"], "verbs": both}]},
        {"token": "narrow", "scopes": [{"resources": [resource], "tenants": ["acme"], "verbs": both}]},
        {"token": "brief", "scopes": [{"resources": ["*"], "tenants": ["*"], "verbs": both}]},
    ]
    for name in ("narrow", "brief", *(["stranger"] if ability.http else [])):
        item: Item = {"name": name, "via": "async", "seed": f"{plan.seed}/{name}", "kind": plan.kind}
        if name == "stranger":
            item["via"] = "http"  # the other protocol does not even let it in
        item |= {"nodes": list(plan.nodes), "rate": SIDE_RATE, "program": "mixed", "keep": None}
        plan.clients.append(item | {"token": "" if name == "stranger" else name})


def skip_rest(plan: Plan, at_s: float) -> float:
    """That time, or the end of the rest that it falls into."""
    within = at_s % (ROUGH_S + REST_S)
    resting = plan.seconds >= RESTS_FROM_S and within > ROUGH_S
    return at_s + ROUGH_S + REST_S - within if resting else at_s


def find_rest(plan: Plan, at_s: float) -> float:
    """When the next rest begins."""
    whole = ROUGH_S + REST_S
    return at_s // whole * whole + ROUGH_S if plan.seconds >= RESTS_FROM_S else plan.seconds


# -- what people do


def draw_changes(rng: random.Random, plan: Plan) -> list[Item]:
    common = [act for act in _COMMON if plan.kind != "claim" or act != "tenant"]
    acts = [*common, *(act for kind in kinds_of(plan.kind) for act in _OF_KIND.get(kind, ()))]
    found: list[Item] = []
    at_s = BEGIN_S + rng.uniform(0, 2)
    joined = False
    while at_s < plan.quiet_s - 2:
        act = rng.choice(acts)
        if act == "join":
            joined = not joined
            found.append({"at": round(at_s, 3), "do": "join" if joined else "leave", "node": SPARE})
        else:
            found.append({"at": round(at_s, 3), "do": act, **_draw_change(rng, plan, act)})
        at_s = skip_rest(plan, at_s + rng.uniform(*CHANGE_GAP_S))
    # The books of quotas are whole only where every ledger answers: there it stays, once it was there.
    stays = "quota" in kinds_of(plan.kind) and any(item["do"] == "join" for item in found)
    if joined != stays:
        move = "join" if stays else "leave"
        found.append({"at": round(max(at_s, plan.quiet_s - 1), 3), "do": move, "node": SPARE})
    return found


_COMMON = ("apply", "apply", "rollback", "tenant", "tenant", "look", "join")
_LOOKS = (
    *(("store", *words) for words in (("node", "list"), ("history",), ("audit",), ("token", "list"))),
    ("store", "tenant", "list", "RESOURCE"),
    *(("node", *words) for words in (("why", "RESOURCE", "gold"), ("top",))),
)
"""What is asked of the store, or of a node's daemon, or (below) by the file of the policy."""

_LOOKS_OF_KIND = {
    "quota": (("node", "quota", "show"),),
    "claim": (("policy", "tasks", "list"), ("policy", "claims", "holders", "NAME")),
}
_OF_KIND = {"quota": ("topup", "topup"), "claim": ("force_release", "force_release")}


def _draw_change(rng: random.Random, plan: Plan, act: str) -> Item:
    if act == "apply":
        return {"policy": rng.randint(1, len(plan.policies))}
    if act == "rollback":
        return {"back": rng.randint(1, 3)}
    if act == "topup":
        return {"tenant": rng.choice(("free", "acme")), "amount": rng.choice((50, 200, 500, -30))}
    if act == "force_release":
        return {"name": rng.choice(NAMES)}
    if act == "tenant":
        return _draw_tenant(rng, plan)
    looks = [*_LOOKS, *(look for kind in kinds_of(plan.kind) for look in _LOOKS_OF_KIND.get(kind, ()))]
    by, *words = rng.choice(looks)
    named = {"NAME": rng.choice(NAMES), "RESOURCE": RESOURCES[rng.choice(kinds_of(plan.kind))]}
    return {"command": [named.get(word, word) for word in words], "by": by, "node": rng.choice(plan.nodes)}


def _draw_tenant(rng: random.Random, plan: Plan) -> Item:
    kind = rng.choice([kind for kind in kinds_of(plan.kind) if kind != "claim"])
    terms: Item | None = None
    if rng.random() < 0.7:
        choices: dict[str, Item] = {
            "rate": {"limit": f"{rng.choice((10, 25, 40))}/s"},
            "share": {"weight": rng.choice((1, 2, 3))},
            "pool": {"limit": f"{rng.choice((10, 20))}/s"},
            "quota": {"limit": rng.choice((200, 500, 900))},
        }
        terms = choices[kind]
    return {"resource": RESOURCES[kind], "tenant": rng.choice(("set-1", "set-2")), "terms": terms}


# -- what goes wrong


def draw_drifts(rng: random.Random, plan: Plan, ability: Ability) -> dict[str, int]:
    """One node's clocks are fast, another's slow, for the whole run. Not on SQLite, whose sessions are
    kept in the boot time that all processes share."""
    if plan.store == "sqlite" or not ability.clocks:
        return {}
    some = rng.sample(plan.nodes, min(2, len(plan.nodes)))
    return dict(zip(some, (DRIFT_PPM, -DRIFT_PPM), strict=False))


def draw_faults(rng: random.Random, plan: Plan, ability: Ability) -> list[Item]:
    menu = list_faults(plan, ability)
    if random.Random(f"{plan.seed}/disks").random() >= SPOILT:
        menu = [fault for fault in menu if fault not in SPOILING]
    disks = rng.choice(plan.nodes)
    clock = rng.choice(plan.nodes)
    busy: dict[str, float] = {}
    found = []
    outage = _draw_outage(rng, plan)
    lost_at_s = -APART_S
    for at_s in _draw_times(rng, plan):
        fault = rng.choice(menu)
        item = _draw_fault(rng, plan, fault, disks, clock)
        length_s = _draw_length(rng, plan, fault)
        until_s = min(at_s + length_s, plan.quiet_s - 1, find_rest(plan, at_s))
        taken = any(busy.get(target, 0) > at_s for target in item["targets"])
        if taken or until_s - at_s < 0.3 or (fault in ENGINE and _overlap(outage, at_s, until_s)):
            continue
        if fault in LOSING:
            if at_s - lost_at_s < APART_S:
                continue
            lost_at_s = at_s
        for target in item["targets"]:
            busy[target] = until_s + (AFTER_S if fault in DOWN else 1)
        found.append({"at": round(at_s, 3), "for": round(until_s - at_s, 3), "fault": fault, **item})
    return sorted(found + outage, key=lambda item: float(item["at"]))


def _draw_outage(rng: random.Random, plan: Plan) -> list[Item]:
    if plan.seconds < OUTAGE_FROM_S:
        return []
    at_s, for_s = rng.uniform(0.2, 0.6) * plan.seconds, rng.uniform(*OUTAGE_S)
    item = {"at": round(at_s, 3), "for": round(for_s, 3), "fault": "engine_away", "targets": ["engine"]}
    return [item]


def _overlap(outage: list[Item], at_s: float, until_s: float) -> bool:
    return any(item["at"] - 1 < until_s and at_s < item["at"] + item["for"] + AFTER_S for item in outage)


DOWN = ("kill", "stop", "disk_full", "disk_lost", "torn", "flipped", "engine_kill")
SPOILING = ("disk_full", "disk_lost", "torn", "flipped")
LOSING = ("disk_lost", "flipped")
ENGINE = ("engine_kill", "engine_pause", "engine_slow", "engine_away")
NETWORK = ("cut", "one_way", "loss", "delay")


def list_faults(plan: Plan, ability: Ability) -> list[str]:
    """What can go wrong here, the more usual more often."""
    menu = ["kill", "kill", "kill", "stop", "pause", "pause", "client_kill", "client_pause", "engine_pause"]
    menu += ["disk_lost", "engine_slow"]
    if "claim" in kinds_of(plan.kind):
        menu += ["worker_kill"]
    if plan.store != "sqlite":
        menu += ["engine_kill", "engine_pause", "engine_away"]
    if "quota" in kinds_of(plan.kind):
        menu += ["torn", "flipped"]
    if ability.namespaces:
        menu += ["cut", "cut", "one_way", "one_way", "loss", "delay"]
    if ability.mounts:
        menu += ["disk_full"]
    if ability.clocks:
        menu += ["clock"]
    return menu


def _draw_times(rng: random.Random, plan: Plan) -> Iterator[float]:
    at_s = BEGIN_S
    while at_s < plan.quiet_s - 1:
        yield at_s
        at_s = skip_rest(plan, at_s + rng.uniform(*GAP_S))


def _draw_length(rng: random.Random, plan: Plan, fault: str) -> float:
    if plan.seconds >= 60 and rng.random() < 0.12:
        return rng.uniform(*LONG_S)
    return rng.uniform(0.3, 5.0)


def _draw_fault(rng: random.Random, plan: Plan, fault: str, disks: str, clock: str) -> Item:
    node = rng.choice(plan.nodes)
    if fault.startswith("client_"):
        return {"targets": [rng.choice(plan.clients)["name"]]}
    if fault == "worker_kill":
        return {"targets": ["worker"]}
    if fault in ENGINE:
        return {"targets": ["engine"]}
    if fault == "disk_full":
        return {"targets": [disks]}
    if fault == "clock":
        return {"targets": [clock], "jump_s": round(rng.choice((-1, 1)) * 10 ** rng.uniform(0, 3.5), 3)}
    if fault in ("torn", "flipped"):
        return {"targets": [node], "seed": rng.randrange(2**32)}
    if fault in ("loss", "delay"):
        return {"targets": [node], "part": round(rng.uniform(0.05, 0.4), 3)}
    if fault == "cut":
        return {"targets": [node, *_draw_others(rng, plan, node)]}
    if fault == "one_way":
        return {"targets": [node, *_draw_others(rng, plan, node)], "mute": rng.random() < 0.5}
    return {"targets": [node]}


def _draw_others(rng: random.Random, plan: Plan, node: str) -> list[str]:
    """Whom a node is cut off from: another node, clients, the engine, or everybody."""
    nodes = [other for other in plan.nodes if other != node]
    clients = [client["name"] for client in plan.clients]
    engine = [f"store{number + 1}" for number in range(plan.servers)] if plan.store != "sqlite" else []
    groups = [[rng.choice(nodes)] if nodes else clients, clients, engine or nodes, nodes + clients + engine]
    return rng.choice(groups)
