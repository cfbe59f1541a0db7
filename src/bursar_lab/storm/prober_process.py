"""Whoever watches: `python -m bursar_lab.storm.prober_process SPEC.json` asks every node whether it is ready,
acquires a little of everything beside it, and reads its metrics.

SPEC: {"history", "begin_ns", "end_ns", "quiet_ns": from when on nothing goes wrong any more, "nodes": {slot:
{"url", "http"}}, "resources": {name: kind}, "tls", "certificate", "token"}. At the end it asks everybody once
more: those probes have `"what": "last"`.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bursar_lab.storm.callers import AsyncCaller
from bursar_lab.storm.history import SECOND_NS, History, now_ns

EVERY_S = 2.0
SCRAPE_TURNS = 2
WAIT_MS = 500
OPEN_TIMEOUT_S = 3.0
HTTP_TIMEOUT_S = 2.0
LAST_WAIT_MS = 2_000
SETTLED_S = 8.0
"""After the end, when clients have settled what they settle late: then the books are looked at last."""


def sum_counters(text: str) -> dict[str, float]:
    """What the front doors count, over tenants and for each: {"bursar_tenant_granted_total api": 120,
    "bursar_tenant_granted_total api acme": 20, ...}."""
    sums: dict[str, float] = {}
    for name, labels, value in re.findall(r"^(bursar_tenant_\w+_total)\{(.*)\} (\S+)$", text, re.MULTILINE):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        whole = f"{name} {found.get('resource')}"
        sums[whole] = sums.get(whole, 0) + float(value)
        if name == "bursar_tenant_granted_total":
            sums[f"{whole} {found.get('tenant')}"] = float(value)
    return sums


class Prober:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._history = History(Path(spec["history"]))
        self._callers: dict[str, AsyncCaller] = {}

    async def run(self) -> None:
        await asyncio.gather(*(self._watch(slot) for slot in self._spec["nodes"]))
        await asyncio.gather(*(self._probe_all(slot, "last", LAST_WAIT_MS) for slot in self._spec["nodes"]))
        await asyncio.sleep(max(0.0, (self._spec["end_ns"] - now_ns()) / SECOND_NS + SETTLED_S))
        await self._show(self._spec["nodes"])
        for caller in self._callers.values():
            await caller.close()

    async def _watch(self, slot: str) -> None:
        turn = 0
        while now_ns() < self._spec["end_ns"]:
            await self._look(slot, "/ready")
            await self._probe_all(slot, "beside", WAIT_MS)
            if turn % SCRAPE_TURNS == 0:
                await self._look(slot, "/metrics")
                if slot == min(self._spec["nodes"]) and now_ns() > self._spec["quiet_ns"]:
                    await self._show([slot])
            turn += 1
            left_s = (self._spec["end_ns"] - now_ns()) / SECOND_NS
            await asyncio.sleep(max(0.0, min(EVERY_S, left_s)))

    async def _show(self, slots: Iterable[str]) -> None:
        """What every ledger has, by the first of these nodes that can say it."""
        for resource in (name for name, kind in self._spec["resources"].items() if kind == "quota"):
            for slot in slots:
                caller = await self._reach(slot)
                told = None if caller is None else await caller.verb(resource, "survey")
                if told is not None and told.value is not None:
                    figures = {"whole": {row["account"]: row for row in told.value["rows"]}}
                    where = {"node": slot, "resource": resource}
                    self._history.write("show", at=told.at, end=told.end, ok=True, figures=figures, **where)
                    break

    async def _look(self, slot: str, path: str) -> None:
        at = now_ns()
        try:
            status, body = await asyncio.wait_for(self._get(slot, path), HTTP_TIMEOUT_S)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            return  # nobody is there: that says nothing
        end, node = now_ns(), {"node": slot}
        if path == "/ready":
            self._history.write("ready", at=at, end=end, ready=status == 200, why=body[:300], **node)
        else:
            figures = {"status": status, "bytes": len(body), "counters": sum_counters(body)}
            self._history.write("scrape", at=at, end=end, ok=status == 200, figures=figures, **node)

    async def _get(self, slot: str, path: str) -> tuple[int, str]:
        host, _, port = self._spec["nodes"][slot]["http"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=self._context())
        token = self._spec.get("secret")
        rights = f"Authorization: Bearer {token}\r\n" if token else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{rights}Connection: close\r\n\r\n".encode())
        try:
            raw = await reader.read()
        finally:
            writer.close()
        head, _, body = raw.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]) if b" " in head else 0, body.decode(errors="replace")

    def _context(self) -> Any:
        if not self._spec.get("https"):
            return None
        from bursar import Tls
        from bursar_lab.storm.callers import make_context

        return make_context(Tls(**self._spec["tls"]))

    async def _probe_all(self, slot: str, what: str, wait_ms: int) -> None:
        caller = await self._reach(slot)
        if caller is None:
            if what == "last":
                self._history.write("note", at=now_ns(), what="not reached", node=slot)
            return
        for resource, kind in self._spec["resources"].items():
            await self._probe(caller, slot, what, resource, kind, wait_ms)

    async def _reach(self, slot: str) -> AsyncCaller | None:
        if slot in self._callers:
            return self._callers[slot]
        options: dict[str, Any] = {"token": self._spec["secret"]} if self._spec.get("secret") else {}
        if self._spec.get("tls"):
            from bursar import Tls

            options |= {"tls": Tls(**self._spec["tls"]), "name": self._spec["certificate"]}
        caller = AsyncCaller(self._spec["nodes"][slot]["url"], **options)
        told = await caller.open(OPEN_TIMEOUT_S)
        if told.answer["is"] != "done":
            return None
        self._callers[slot] = caller
        return caller

    async def _probe(
        self, caller: AsyncCaller, slot: str, what: str, resource: str, kind: str, wait_ms: int
    ) -> None:
        claims = {"do": "claim", "names": [f"probe-{slot}:E"], "amount": 1}
        asked = {"resource": resource, "tenant": "probe", "wait_ms": wait_ms}
        asked |= claims if kind == "claim" else {"do": "acquire", "amount": 1}
        told = await caller.acquire(asked)
        del asked["do"]
        n = self._history.number()
        if self._spec.get("token"):
            asked["token"] = self._spec["token"]
        fields = {**asked, "nodes": [slot], "via": "async", "what": what, "answer": told.answer}
        self._history.write("probe", n=n, at=told.at, end=told.end, **fields)
        if told.value is not None:
            ended = await caller.release(told.value)
            self._history.write(
                "release", grant=n, at=ended.at, end=ended.end, resource=resource, answer=ended.answer
            )


if __name__ == "__main__":
    asyncio.run(Prober(json.loads(Path(sys.argv[1]).read_text())).run())
