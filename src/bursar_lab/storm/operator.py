"""What people do with a fleet while it runs, by the command line, as the plan says: apply, roll back, set
tenants, let a node join and leave, top up, write off, release by force. Written to the history with what
the command said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bursar.errors import BursarError
from bursar_lab.storm.history import SECOND_NS, History, now_ns, sleep_until
from bursar_lab.storm.nodes import Fleet
from bursar_lab.storm.places import OPERATOR, Place
from bursar_lab.storm.policies import RESOURCES

Item = dict[str, Any]
COMMAND_TIMEOUT_S = 30.0
SAID_MAX = 500
FENCE_S = 180.0
"""Longer than the engine is ever away: a ledger that is lost and not written off keeps its node down."""

LATE_S = 4.0
"""A change that is later than this is left out: what the plan has for a rest must not come after it."""

NEVER_LEFT_OUT = ("join", "leave", "revoke")
MADE_UP = {"gold": 50_000, "acme": 5_000, "probe": 10_000}
"""What is added to budgets when a ledger was written off, which may have had most of them."""


class Operator:
    def __init__(
        self, folder: Path, place: Place, store: str, fleet: Fleet, history: History, policies: Sequence[str]
    ) -> None:
        self._folder = folder
        self._place = place
        self._store = store
        self._fleet = fleet
        self._history = history
        self._lock = threading.Lock()
        self._versions: list[tuple[int, str]] = []
        self._kinds = policies[0]
        self.tokens: dict[str, str] = {}
        """The texts of tokens, by the names that the history has for them."""

        self.done = 0
        for number, text in enumerate(policies, start=1):
            (folder / f"policy-{number}.toml").write_text(text)

    @property
    def file(self) -> Path:
        """The policy in force, with the store: what commands read that go to the store by a file."""
        return self._folder / "operator.toml"

    def run(self, changes: Sequence[Item], begin_ns: int) -> None:
        for item in changes:
            sleep_until(begin_ns + int(item["at"] * SECOND_NS))
            late_s = (now_ns() - begin_ns) / SECOND_NS - item["at"]
            if late_s > LATE_S and item["do"] not in NEVER_LEFT_OUT:
                self._history.write(
                    "note", at=now_ns(), what="left out", why=f"{item['do']}: {late_s:.1f} s late"
                )
                continue
            getattr(self, f"_{item['do']}")(item)
            self.done += 1

    def ask(self, *arguments: str) -> tuple[bool, str]:
        """Run `bursar ...` where the operator stands: whether it did it, and what it said."""
        command = self._place.command(OPERATOR, [sys.executable, "-m", "bursar", *arguments])
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, env=self._environment()
            )
        except subprocess.TimeoutExpired:
            return False, f"no answer within {COMMAND_TIMEOUT_S:g} s"
        return done.returncode == 0, done.stdout if done.returncode == 0 else (done.stderr or done.stdout)

    def _environment(self) -> dict[str, str]:
        usual = self.tokens.get("usual")
        return {**os.environ, "BURSAR_TOKEN": usual} if usual else dict(os.environ)

    def _write(self, op: str, at: int, ok: bool, said: str, **fields: Any) -> None:
        why = {} if ok else {"why": said.strip()[-SAID_MAX:]}
        self._history.write(op, at=at, end=now_ns(), ok=ok, **fields, **why)

    # -- the policy

    def apply(self, number: int) -> bool:
        name = f"policy-{number}.toml"
        at = now_ns()
        ok, said = self.ask("apply", str(self._folder / name), "--store", self._store, "--yes", "--json")
        version = _read_version(said)
        if version is None:
            self._write("apply", at, False, said, text=name)
            return False
        # Written is in force, whether or not every node said that it had taken it (`taken`).
        self._took(version, name)
        self._write("apply", at, True, said, text=name, version=version, taken=ok)
        return True

    def await_taken(self, timeout_s: float) -> bool:
        """Until every node runs the policy."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            ok, said = self.ask("node", "list", "--store", self._store, "--json")
            nodes = json.loads(said) if ok else []
            if nodes and all(node["version"] == self._versions[-1][0] for node in nodes):
                return True
        return False

    def _took(self, version: int, name: str) -> None:
        if not self._versions or self._versions[-1][0] != version:
            self._versions.append((version, name))
        text = (self._folder / name).read_text()
        self.file.write_text(f'store = "{self._store}"\n{text}')

    def _apply(self, item: Item) -> None:
        self.apply(item["policy"])

    def _rollback(self, item: Item) -> None:
        version, name = self._versions[-min(item["back"], len(self._versions))]
        at = now_ns()
        ok, said = self.ask("rollback", str(version), "--store", self._store, "--yes")
        if ok:
            self._took(max(number for number, _ in self._versions) + 1, name)
        self._write("rollback", at, ok, said, to=version, text=name)

    def _tenant(self, item: Item) -> None:
        resource, tenant, terms = item["resource"], item["tenant"], item["terms"]
        where = ("--store", self._store)
        at = now_ns()
        if terms is None:
            ok, said = self.ask("tenant", "remove", resource, tenant, *where)
        else:
            words = [f"{key}={value}" for key, value in terms.items()]
            ok, said = self.ask("tenant", "set", resource, tenant, *words, *where)
        self._write("tenant", at, ok, said, resource=resource, tenant=tenant, terms=terms)

    # -- nodes

    def _join(self, item: Item) -> None:
        at = now_ns()
        self._fleet.add(item["node"])
        self._fleet.start(item["node"])
        late = self._fleet.await_ready(item["node"])
        self._write("join", at, not late, "it was not ready in time", node=item["node"])

    def _leave(self, item: Item) -> None:
        at = now_ns()
        self._fleet.stop(item["node"])
        self._write("leave", at, True, "", node=item["node"])

    def fence(self, name: str) -> None:
        """Write off what a node had that lost its state: for budgets."""
        if 'kind = "quota"' not in self._kinds:
            return
        at, until = now_ns(), time.monotonic() + FENCE_S
        ok, said = False, ""
        while not ok and time.monotonic() < until:  # a node that was killed counts as up for a while
            ok, said = self.ask("quota", "fence", name, "--policy", str(self.file), "--yes")
        self._write("fence", at, ok, said, node=name, resource=RESOURCES["quota"])
        for tenant, amount in MADE_UP.items() if ok else ():
            self._topup({"tenant": tenant, "amount": amount})

    # -- kinds

    def _topup(self, item: Item) -> None:
        at = now_ns()
        where = ("--policy", str(self.file), "--json")
        ok, said = self.ask("quota", "topup", item["tenant"], str(item["amount"]), *where)
        fields = {"tenant": item["tenant"], "amount": item["amount"], "resource": RESOURCES["quota"]}
        self._write("topup", at, ok, said, **fields)

    def _force_release(self, item: Item) -> None:
        at = now_ns()
        ok, said = self.ask("claims", "release", item["name"], "--policy", str(self.file), "--yes")
        self._write("force_release", at, ok, said, name=item["name"], resource=RESOURCES["claim"])

    # -- rights

    def make_token(self, name: str, scopes: Sequence[Item]) -> None:
        (scope,) = scopes
        options = [f"--{key[:-1]}={value}" for key, values in scope.items() for value in values]
        at = now_ns()
        ok, said = self.ask("token", "create", *options, "--store", self._store, "--json", "--note", name)
        if ok:
            self.tokens[name] = json.loads(said)["token"]
        self._write("token", at, ok, said, token=name, scopes=list(scopes))

    def let_join(self) -> None:
        """From the first token on a node that starts needs one too."""
        where = ("--store", self._store, "--json", "--note", "join")
        ok, said = self.ask("token", "create", "--verb=join", *where)
        if not ok:
            raise BursarError(f"no token lets nodes join: {said}")
        self._fleet.join_token = self._folder / "specs" / "join-token"
        self._fleet.join_token.write_text(json.loads(said)["token"] + "\n")

    def _revoke(self, item: Item) -> None:
        at = now_ns()
        ok, said = self.ask("token", "revoke", self.tokens[item["token"]], "--store", self._store)
        self._write("revoke", at, ok, said, token=item["token"])

    # -- looking

    def _look(self, item: Item) -> None:
        at = now_ns()
        ok, said = self.ask(*item["command"], *self._list_where(item), "--json")
        self._write("note", at, ok, said, what=" ".join(item["command"]))

    def _list_where(self, item: Item) -> list[str]:
        """Of whom it is asked: the store, the store that a policy names, or a node."""
        if item["by"] == "store":
            return ["--store", self._store]
        if item["by"] == "policy":
            return ["--policy", str(self.file)]
        files = self._place.certificate(OPERATOR)
        where = ["--at", f"bursar://{self._place.address(item['node'])}"]
        return where if files is None else [*where, "--name", OPERATOR, *files.options()]


def _read_version(said: str) -> int | None:
    """Also of a command that failed after it was written."""
    for line in said.splitlines():
        try:
            return int(json.loads(line)["version"])
        except (ValueError, KeyError, TypeError):
            continue
    return None
