"""Histories for the checker's tests, told line by line. Times are in seconds from the beginning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bursar_lab.storm.checker.breaches import Breach
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import Line, read_line
from bursar_lab.storm.checker.policies import read_policy
from bursar_lab.storm.checker.verdict import PROMISES

SECOND_NS = 1_000_000_000
BEGAN_NS = 5_000 * SECOND_NS


def ns(at: float) -> int:
    return BEGAN_NS + round(at * SECOND_NS)


class Tale:
    """One run: the policy is in force from its beginning, unless it is told otherwise."""

    def __init__(self, policy: str, about: Mapping[str, Any] | None = None) -> None:
        self.policies = {"policy-1.toml": policy}
        self.about = dict(about or {})
        self.files: dict[str, list[dict[str, Any]]] = {}
        self.apply(-100, 1)

    def write(self, file: str, op: str, at: float, end: float | None = None, **fields: Any) -> int:
        """The number of the line in its file, from 1."""
        lines = self.files.setdefault(file, [])
        line = {"op": op, "at": ns(at), "end": None if end is None else ns(end), **fields}
        lines.append(line)
        return len(lines)

    # -- operators

    def apply(self, at: float, version: int, end: float | None = None, ok: bool | None = True) -> int:
        text = f"policy-{version}.toml"
        end = at + 0.5 if end is None and ok is not None else end
        return self.write("operator", "apply", at, end, version=version, text=text, ok=ok)

    def change(self, at: float, policy: str, **fields: Any) -> int:
        version = len(self.policies) + 1
        self.policies[f"policy-{version}.toml"] = policy
        return self.apply(at, version, **fields)

    def set_tenant(self, at: float, resource: str, tenant: str, terms: dict[str, Any] | None) -> int:
        fields = {"resource": resource, "tenant": tenant, "terms": terms, "ok": True}
        return self.write("operator", "tenant", at, at + 0.1, **fields)

    def fault(self, at: float, fault: str, *targets: str, until: float | None = None, **fields: Any) -> int:
        line = self.write("nemesis", "fault", at, at, fault=fault, targets=list(targets), **fields)
        if until is not None:
            self.write("nemesis", "heal", until, until, fault=fault, targets=list(targets))
        return line

    def stood(self, at: float, end: float) -> int:
        return self.write("witness", "stood", at, end)

    def starved(self, at: float, end: float, who: str, waited: float) -> int:
        return self.write("witness", "starved", at, end, who=who, ns=round(waited * SECOND_NS))

    # -- clients

    def ask(
        self,
        at: float,
        resource: str,
        tenant: str = "acme",
        amount: int = 1,
        *,
        end: float | None = None,
        took: float = 0.001,
        client: str = "c1",
        op: str = "acquire",
        is_: str = "grant",
        wait_ms: float = 0,
        told: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> int:
        answer = {"is": is_, **({"amount": amount} if is_ == "grant" else {}), **(told or {})}
        number = len(self.files.get(client, [])) + 1
        fields = {"nodes": ["a"], "via": "async", "n": number, "wait_ms": wait_ms, **fields}
        fields |= {"resource": resource, "tenant": tenant, "amount": amount, "answer": answer}
        return self.write(client, op, at, at + took if end is None else end, **fields)

    def begin(
        self, at: float, resource: str, *, wait_ms: float = 0, client: str = "c1", of: str = "acquire"
    ) -> int:
        number = len(self.files.get(client, [])) + 1
        return self.write(client, "begin", at, None, n=number, of=of, resource=resource, wait_ms=wait_ms)

    def settle(
        self, at: float, grant: int, used: int, *, client: str = "c1", is_: str = "done", **fields: Any
    ) -> int:
        fields = {"grant": grant, "used": used, "answer": {"is": is_}, **fields}
        return self.write(client, "settle", at, at + 0.001, **fields)

    def release(self, at: float, grant: int, client: str = "c1") -> int:
        return self.write(client, "release", at, at + 0.001, grant=grant, answer={"is": "done"})

    # -- judging

    def lines(self) -> list[Line]:
        found = []
        for name, written in self.files.items():
            for number, fields in enumerate(written, start=1):
                line = read_line(json.dumps(fields).encode())
                line.file, line.line = f"{name}.jsonl", number
                found.append(line)
        return found

    def history(self) -> History:
        policies = {name: read_policy(text) for name, text in self.policies.items()}
        return History(self.lines(), policies, self.about)

    def check(self, promise: str) -> list[Breach]:
        """What one promise finds; the others must find nothing, or the tale is about more than it says."""
        history = self.history()
        found = [breach for check in PROMISES.values() for breach in check(history)]
        assert {breach.promise for breach in found} <= {promise}, found
        return sorted(found, key=lambda breach: breach.at)

    def leave(self, folder: Path) -> None:
        """As a run would."""
        (folder / "history").mkdir(parents=True)
        for name, text in self.policies.items():
            (folder / name).write_text(text)
        (folder / "storm.json").write_text(json.dumps(self.about))
        for name, written in self.files.items():
            text = "".join(json.dumps(line) + "\n" for line in written)
            (folder / "history" / f"{name}.jsonl").write_text(text)


def places(breach: Breach) -> list[str]:
    return [f"{place.file.removesuffix('.jsonl')}:{place.line}" for place in breach.places]
