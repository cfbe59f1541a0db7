"""One client: `python -m bursar_lab.storm.client_process SPEC.json` asks what it is to ask, when it is due,
and writes what it was told.

SPEC: {"name", "via", "seed", "kind", "rate", "urls": [first, elsewhere], "http": [...], "nodes": [...],
"begin": a file that says when, "seconds", "from_s", "program": "mixed" | "steady", "history", "guard",
"keep", "tls", "token": its name, "secret": its text}.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from bursar_lab.storm.answers import DONE, describe_grant
from bursar_lab.storm.callers import AT_ONCE_MAX, AsyncCaller, Caller, HttpCaller, SyncCaller, Told
from bursar_lab.storm.guard_process import GuardLine
from bursar_lab.storm.history import SECOND_NS, History, now_ns
from bursar_lab.storm.operations import LATE_MS, Operation, draw_operations
from bursar_lab.storm.policies import RESOURCES, kinds_of

OPEN_TIMEOUT_S = 5.0
OPEN_AGAIN_S = 0.5
OPEN_MAX = 40
STEADY_WAIT_MS = 1000
STEADY_STREAMS = {"rate": 8, "share": 6, "pool": 6}
AFTER_FAILURE_S = 0.02
CLOSE_S = 5.0
NANOS = 1_000_000
TASK_WAIT_S = 10.0
REPEAT_S = 12.0
"""How long before the end keys are asked for once more that were settled long ago."""

REPEAT_MAX = 40
TASK_PAYLOAD = msgspec.msgpack.encode({"function": "touch", "arguments": {}})


class Client:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.history = History(Path(spec["history"]))
        self.guard = GuardLine(spec["guard"]) if spec.get("guard") else None
        self.first, self.elsewhere = (self._make(number) for number in range(2))
        self.begin_ns = self.end_ns = 0
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)
        self._open: set[asyncio.Task[None]] = set()
        self._settled: list[tuple[int, Operation]] = []
        """What was acquired with a key and settled, by how long that took."""

    def _make(self, number: int) -> Caller:
        spec = self.spec
        options: dict[str, Any] = {"token": spec["secret"]} if spec.get("secret") else {}
        if spec.get("tls"):
            import bursar

            options |= {"tls": bursar.Tls(**spec["tls"]), "name": spec["certificate"]}
        if spec["via"] == "http":
            urls = list(zip(spec["nodes"], spec["http"], strict=True))
            return HttpCaller(dict(urls[number:] + urls[:number]), spec.get("secret"), options.get("tls"))
        make = SyncCaller if spec["via"] == "sync" and number == 0 else AsyncCaller
        return make(spec["urls"][number], **options)

    async def run(self) -> None:
        for caller in (self.first, self.elsewhere):
            if not await self._connect(caller):
                return
        await self._await_begin()
        if self.spec["program"] == "steady":
            await self._run_steadily()
        else:
            await self._run_mixed()
        if self._open:
            await asyncio.wait(self._open, timeout=CLOSE_S)
        for caller in (self.first, self.elsewhere):
            at = now_ns()
            await caller.close()
            self.history.write("close", at=at, end=now_ns(), via=caller.via)

    async def _connect(self, caller: Caller) -> bool:
        """A client that finds nobody comes again, as one that a supervisor starts again would."""
        for _ in range(OPEN_MAX):
            told = await caller.open(OPEN_TIMEOUT_S)
            found = told.answer["is"] == "done" or caller.via == "http"
            answer = told.answer if found else {**told.answer, "is": "unknown"}
            self.history.write("connect", at=told.at, end=told.end, via=caller.via, answer=answer)
            if found:
                return True
            await asyncio.sleep(OPEN_AGAIN_S)
        return False

    async def _await_begin(self) -> None:
        """All begin at one time, which is known when all are there."""
        while (begin_ns := _read_begin(self.spec["begin"])) is None:
            await asyncio.sleep(AFTER_FAILURE_S)
        self.begin_ns = begin_ns
        self.end_ns = self.begin_ns + int(self.spec["seconds"] * SECOND_NS)

    # -- operations that are due

    async def _run_mixed(self) -> None:
        spec = self.spec
        due = draw_operations(spec["seed"], spec["kind"], spec["rate"], spec["seconds"])
        repeating = asyncio.create_task(self._repeat_keys())
        for number, operation in enumerate(due):
            if operation["at_ms"] < spec["from_s"] * 1000 or not _is_kept(spec.get("keep"), number):
                continue
            await _sleep_until(self.begin_ns + operation["at_ms"] * NANOS)
            await self._at_once.acquire()
            if now_ns() >= self.end_ns:
                break  # it is behind, with so many on their way: what is left is not begun any more
            task = asyncio.create_task(self._do(operation))
            self._open.add(task)
            task.add_done_callback(self._over)
        await repeating

    async def _repeat_keys(self) -> None:
        """Ask again for what is settled, the hardest to settle first: a repeat says what was used."""
        await _sleep_until(self.end_ns - int(REPEAT_S * SECOND_NS))
        hardest = sorted(self._settled, key=lambda settled: -settled[0])[:REPEAT_MAX]
        for _, operation in hardest:
            if now_ns() < self.end_ns:
                await self._ask(self.elsewhere, {**operation, "wait_ms": STEADY_WAIT_MS})

    def _over(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._at_once.release()
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            self.history.write("harness", at=now_ns(), why=f"{type(error).__name__}: {error}")

    async def _do(self, operation: Operation) -> None:
        if operation["do"] == "submit":
            await self._submit(operation)
            return
        if operation["do"] in ("acquire_all", "try_acquire") and self.spec["via"] == "http":
            return  # its API has no such thing
        n, told = await self._ask(self.first, operation)
        if operation.get("retry"):
            m, again = await self._ask(self.elsewhere, operation)
            if told.value is None or operation["do"] == "claim":
                await self._finish(self.elsewhere, operation, m, again)
        await self._finish(self.first, operation, n, told)

    async def _ask(self, caller: Caller, operation: Operation) -> tuple[int, Told]:
        n = self.history.number()
        fields = self._describe(caller, operation)
        self.history.write("begin", n=n, of=operation["do"], at=now_ns(), **fields)
        asking = asyncio.create_task(caller.acquire(operation))
        cancel_ms = operation.get("cancel_ms")
        if cancel_ms is not None:
            await asyncio.wait({asking}, timeout=cancel_ms / 1000)
            if not asking.done() and caller.via != "sync":
                asking.cancel()
        told = await asking
        fields["answer"] = told.answer
        if told.put is not None:
            fields |= {"put": told.put, "in_vain": told.in_vain}
        self.history.write(operation["do"], n=n, at=told.at, end=told.end, **fields)
        if operation["do"] == "acquire_all" and told.value is not None:
            self._write_parts(n, told, fields)
        return n, told

    def _write_parts(self, n: int, told: Told, fields: dict[str, Any]) -> None:
        """Each grant of several, as if it had been acquired alone."""
        for name, grant in told.value.grants.items():
            part = {**fields, "resource": name, "amount": grant.amount, "answer": describe_grant(grant)}
            part.pop("amounts")
            self.history.write("acquire", at=told.at, end=told.end, part_of=n, **part)

    def _describe(self, caller: Caller, operation: Operation) -> dict[str, Any]:
        kept = ("resource", "tenant", "amount", "amounts", "wait_ms", "key", "names", "cancel_ms")
        fields = {key: operation[key] for key in kept if operation.get(key) is not None}
        if self.spec.get("token") is not None:
            fields["token"] = self.spec["token"]
        return {"via": caller.via, "nodes": self.spec["nodes"], **fields}

    # -- what becomes of a grant

    async def _finish(self, caller: Caller, operation: Operation, n: int, told: Told) -> None:
        if told.value is None:
            return
        await self._hold(operation, n, told)
        if operation.get("more") and caller.via != "http":
            await self._ask_more(caller, operation, n, told)
        end = operation["end"]
        if told.answer.get("fallback") and end not in ("release", "settle"):
            end = "release"
        if end == "abandon":
            return
        if end in ("elsewhere", "late") and told.answer.get("id"):
            await asyncio.sleep(LATE_MS / 1000 if end == "late" else 0)
            used = operation["used"]
            ended = await self.elsewhere.settle_by_id(operation["resource"], told.answer["id"], used)
            self._write_end("settle", n, operation, ended, used, self.elsewhere)
        elif end == "release":
            self._write_end("release", n, operation, await caller.release(told.value), None, caller)
        else:
            used = operation["used"]
            self._write_end("settle", n, operation, await caller.settle(told.value, used), used, caller)

    def _write_end(
        self, op: str, n: int, operation: Operation, told: Told, used: int | None, caller: Caller
    ) -> None:
        fields: dict[str, Any] = {"tenant": operation["tenant"], "answer": told.answer}
        if operation["resource"]:
            fields["resource"] = operation["resource"]
        if used is not None:
            fields["used"] = used if operation["resource"] else {"llm": used}
        if used and operation.get("key") and told.answer == DONE:
            self._settled.append((told.end - told.at, operation))
        self.history.write(op, grant=n, at=told.at, end=told.end, via=caller.via, **fields)

    async def _ask_more(self, caller: Caller, operation: Operation, n: int, told: Told) -> None:
        """Whoever holds names asks for others; what comes of it is held with them."""
        names, wait_ms = operation["more"], operation["more_wait_ms"]
        more = await caller.more(told.value, names, wait_ms / 1000)
        kept = ("resource", "tenant")
        fields = {key: operation[key] for key in kept} | {"names": names, "wait_ms": wait_ms}
        self.history.write(
            "more", grant=n, at=more.at, end=more.end, via=caller.via, answer=more.answer, **fields
        )
        if more.value is not None:
            await self._hold(operation, n, more)

    async def _hold(self, operation: Operation, n: int, told: Told) -> None:
        """Whoever holds names writes where they are guarded: when it begins, and again before it lets go."""
        hold_s = operation["hold_ms"] / 1000
        if operation["do"] != "claim" or self.guard is None:
            await asyncio.sleep(hold_s)
            return
        await self._write_guarded(n, told)
        await asyncio.sleep(hold_s)
        await self._write_guarded(n, told)

    async def _write_guarded(self, n: int, told: Told) -> None:
        assert self.guard is not None, "checked by whoever calls"
        for name, fence in told.answer["fence"].items():
            await self.guard.write(name, fence, f"{self.spec['name']}/{n}")

    # -- tasks

    async def _submit(self, operation: Operation) -> None:
        key = operation.get("key") or None
        arguments = {
            "tenant": operation["tenant"],
            "names": operation["names"],
            "payload": TASK_PAYLOAD,
            "key": key,
        }
        told = await self.first.verb(operation["resource"], "submit", **arguments)
        n = self.history.number()
        fields = self._describe(self.first, operation) | {"answer": {**told.answer, "id": told.value}}
        self.history.write("submit", n=n, at=told.at, end=told.end, **fields)
        if told.value is None:
            return
        if operation.get("cancel_ms") is not None:
            await asyncio.sleep(operation["cancel_ms"] / 1000)
            ended = await self.elsewhere.verb(operation["resource"], "cancel", id=told.value)
            self._write_task("cancel", n, operation, ended)
            return
        until = now_ns() + int(TASK_WAIT_S * SECOND_NS)
        while now_ns() < until:
            ended = await self.elsewhere.verb(operation["resource"], "wait_for", id=told.value, timeout=1.0)
            if isinstance(ended.value, dict) and ended.value.get("outcome"):
                break
            if ended.answer["is"] != "done":
                await asyncio.sleep(AFTER_FAILURE_S)
        self._write_task("wait_for", n, operation, ended)

    def _write_task(self, op: str, n: int, operation: Operation, told: Told) -> None:
        answer = {**told.answer, "task": _describe_task(told.value)}
        self.history.write(
            op, task=n, at=told.at, end=told.end, resource=operation["resource"], answer=answer
        )

    # -- somebody who always waits

    async def _run_steadily(self) -> None:
        await _sleep_until(self.begin_ns)
        kinds = [kind for kind in kinds_of(self.spec["kind"]) if kind in STEADY_STREAMS]
        streams = [self._ask_on(RESOURCES[kind]) for kind in kinds for _ in range(STEADY_STREAMS[kind])]
        await asyncio.gather(*streams)

    async def _ask_on(self, resource: str) -> None:
        operation: Operation = {
            "do": "acquire",
            "resource": resource,
            "tenant": "gold",
            "amount": 1,
            "wait_ms": STEADY_WAIT_MS,
        }
        while now_ns() < self.end_ns:
            _, told = await self._ask(self.first, operation)
            if told.answer["is"] != "grant" or told.answer["fallback"]:
                await asyncio.sleep(AFTER_FAILURE_S)
            if told.value is not None:
                ended = await self.first.release(told.value)
                if ended.answer != DONE:
                    self.history.write("release", at=ended.at, end=ended.end, answer=ended.answer)


def _describe_task(task: Any) -> Any:
    """A word, or how it stands and how it ended."""
    return {key: task.get(key) for key in ("state", "outcome")} if isinstance(task, dict) else task


def _is_kept(keep: list[list[int]] | None, number: int) -> bool:
    """`keep`: ranges of operations that are left, for a storm that is made smaller."""
    return keep is None or any(low <= number < high for low, high in keep)


def _read_begin(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except FileNotFoundError:
        return None


async def _sleep_until(at_ns: int) -> None:
    while (left_ns := at_ns - now_ns()) > 0:
        await asyncio.sleep(left_ns / SECOND_NS)


async def main(spec: dict[str, Any]) -> None:
    client = Client(spec)
    task = asyncio.ensure_future(client.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        client.history.write("stopped", at=now_ns())


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
