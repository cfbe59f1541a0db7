"""The three ways in: `bursar.connect`, `bursar.sync` and HTTP, with one face.

Each method ends in `Told`: what came back, and the times around it, taken where the caller stands (a
sync call's in its own thread).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import bursar
from bursar_lab.storm.answers import DONE, Answer, describe_error, describe_grant, describe_problem
from bursar_lab.storm.history import now_ns
from bursar_lab.storm.operations import Operation

AT_ONCE_MAX = 64
"""What a client has on its way at a time."""

SYNC_THREADS = AT_ONCE_MAX
"""One each: what waits for a thread here was not asked yet, and would look like a late answer."""

HTTP_SLACK_S = 2.0
HTTP_CONNECT_S = 1.0
"""Twice, for the connection and for TLS: then the next node is asked."""

LOST = ("NoAnswerError", "UnreachableError", "RemoteError")


@dataclass(frozen=True, slots=True)
class Told:
    """`value` is the grant, or whatever else was returned; None after an error."""

    at: int
    end: int
    answer: Answer
    value: Any = None
    put: int | None = None
    """Over HTTP: when the node that answered was turned to, after those that could not be reached."""
    in_vain: int = 0
    """How many those were."""


class Caller(Protocol):
    via: str

    async def open(self, timeout_s: float) -> Told: ...
    async def acquire(self, operation: Operation) -> Told: ...
    async def settle(self, grant: Any, used: int) -> Told: ...
    async def release(self, grant: Any) -> Told: ...
    async def more(self, grant: Any, names: list[str], wait_s: float) -> Told: ...
    async def settle_by_id(self, resource: str, id: str, used: int | None) -> Told: ...
    async def verb(self, resource: str, verb: str, **arguments: Any) -> Told: ...
    async def close(self) -> None: ...


def tell(value: Any) -> Answer:
    if value is None or isinstance(value, bool | int | str | dict | list | tuple):
        return DONE
    if hasattr(value, "grants"):
        return {"is": "grant"}
    return describe_grant(value)


def soften(told: Told) -> Told:
    """Verbs of a kind are no acquisitions: a lost connection reaches whoever asked as it is."""
    if told.answer["is"] == "error" and told.answer["why"].startswith(LOST):
        return replace(told, answer={**told.answer, "is": "unknown"})
    return told


async def time_async(act: Callable[[], Awaitable[Any]]) -> Told:
    at = now_ns()
    try:
        value = await act()
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it was is the answer
        return Told(at, now_ns(), describe_error(error))
    end = now_ns()
    return Told(at, end, tell(value), value)


def time_sync(act: Callable[[], Any]) -> Told:
    at = now_ns()
    try:
        value = act()
    except Exception as error:  # noqa: BLE001 - whatever it was is the answer
        return Told(at, now_ns(), describe_error(error))
    end = now_ns()
    return Told(at, end, tell(value), value)


def _ask(b: Any, operation: Operation) -> Any:
    """The acquisition that an operation is: to be awaited, or taken."""
    tenant, wait_s = operation["tenant"], operation["wait_ms"] / 1000
    if operation["do"] == "acquire_all":
        return b.acquire_all(tenant, operation["amounts"], wait=wait_s)
    resource = b.resource(operation["resource"])
    key = operation.get("key") or None
    if operation["do"] == "claim":
        return resource.claim(operation["names"], tenant, wait=wait_s, key=key)
    return resource.acquire(tenant, operation["amount"], wait=wait_s, key=key)


class AsyncCaller:
    via = "async"

    def __init__(self, url: str, **options: Any) -> None:
        self._bursar = bursar.Bursar(url, **options)

    async def open(self, timeout_s: float) -> Told:
        return await time_async(lambda: asyncio.wait_for(self._open(), timeout_s))

    async def _open(self) -> None:
        await self._bursar.connect()

    async def acquire(self, operation: Operation) -> Told:
        if operation["do"] == "try_acquire":
            return time_sync(
                lambda: self._bursar.resource(operation["resource"]).try_acquire(
                    operation["tenant"], operation["amount"]
                )
            )

        async def act() -> Any:
            return await _ask(self._bursar, operation)

        return await time_async(act)

    async def settle(self, grant: Any, used: int) -> Told:
        async def act() -> None:
            grant.settle({"llm": used} if hasattr(grant, "grants") else used)
            await grant.release()

        return await time_async(act)

    async def release(self, grant: Any) -> Told:
        return await time_async(grant.release)

    async def more(self, grant: Any, names: list[str], wait_s: float) -> Told:
        return await time_async(lambda: grant.more(*names, wait=wait_s))

    async def settle_by_id(self, resource: str, id: str, used: int | None) -> Told:
        return await time_async(lambda: self._bursar.resource(resource).settle(id, used))

    async def verb(self, resource: str, verb: str, **arguments: Any) -> Told:
        return soften(await time_async(lambda: self._bursar.resource(resource).verb(verb, **arguments)))

    async def close(self) -> None:
        await self._bursar.close()


class SyncCaller:
    via = "sync"

    def __init__(self, url: str, **options: Any) -> None:
        self._url, self._options = url, options
        self._bursar: Any = None
        self._threads = ThreadPoolExecutor(SYNC_THREADS)

    async def _run(self, act: Callable[[], Any]) -> Told:
        return await asyncio.get_running_loop().run_in_executor(self._threads, time_sync, act)

    async def open(self, timeout_s: float) -> Told:
        def act() -> None:
            self._bursar = bursar.sync.connect(self._url, **{**self._options, "timeout": timeout_s})

        return await self._run(act)

    async def acquire(self, operation: Operation) -> Told:
        if operation["do"] == "try_acquire":
            resource, tenant = operation["resource"], operation["tenant"]
            return await self._run(
                lambda: self._bursar.resource(resource).try_acquire(tenant, operation["amount"])
            )
        return await self._run(lambda: _ask(self._bursar, operation).take())

    async def settle(self, grant: Any, used: int) -> Told:
        def act() -> None:
            grant.settle({"llm": used} if hasattr(grant, "grants") else used)
            grant.release()

        return await self._run(act)

    async def release(self, grant: Any) -> Told:
        return await self._run(grant.release)

    async def more(self, grant: Any, names: list[str], wait_s: float) -> Told:
        return await self._run(lambda: grant.more(*names, wait=wait_s))

    async def settle_by_id(self, resource: str, id: str, used: int | None) -> Told:
        return await self._run(lambda: self._bursar.resource(resource).settle(id, used))

    async def verb(self, resource: str, verb: str, **arguments: Any) -> Told:
        return soften(await self._run(lambda: self._bursar.resource(resource).verb(verb, **arguments)))

    async def close(self) -> None:
        if self._bursar is not None:
            await asyncio.to_thread(self._bursar.close)
        self._threads.shutdown(wait=False)


@dataclass(frozen=True, slots=True)
class HttpGrant:
    """What the HTTP API said of a grant, by the names that the others use."""

    body: dict[str, Any]
    node: str

    def __getattr__(self, name: str) -> Any:
        return self.body.get(name)

    @property
    def fence(self) -> dict[str, int]:
        return {name: int(fence) for name, fence in (self.body.get("fence") or {}).items()}

    @property
    def id(self) -> str:
        return str(self.body.get("settle_id") or "")


class HttpCaller:
    """`urls` are the bases of the nodes' APIs, by the nodes' names, the first that answers is asked."""

    via = "http"

    def __init__(self, urls: dict[str, str], token: str | None = None, tls: Any = None) -> None:
        import httpx

        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        verify: Any = True if tls is None else make_context(tls)
        self._urls = urls
        self._client = httpx.AsyncClient(headers=headers, verify=verify, trust_env=False)
        self._errors = (httpx.HTTPError,)
        self._timeout = httpx.Timeout

    async def open(self, timeout_s: float) -> Told:
        async def act() -> None:
            await self._client.get(next(iter(self._urls.values())) + "/live", timeout=timeout_s)

        return await time_async(act)

    async def _post(self, path: str, body: Any, wait_s: float = 0.0, at_node: str | None = None) -> Told:
        return await self._send("POST", path, wait_s, at_node, json=body)

    async def _send(
        self, method: str, path: str, wait_s: float = 0.0, at_node: str | None = None, **more: Any
    ) -> Told:
        at = now_ns()
        timeout = self._timeout(wait_s + HTTP_SLACK_S, connect=HTTP_CONNECT_S)
        why = ""
        for in_vain, node in enumerate([at_node] if at_node else self._urls):
            put = now_ns()
            try:
                url = self._urls[node] + path
                answer = await self._client.request(method, url, timeout=timeout, **more)
            except self._errors as error:
                why = f"{type(error).__name__}: {error}"
                if type(error).__name__ not in ("ConnectError", "ConnectTimeout"):
                    break  # it may have happened: asking another node would be a second acquisition
                continue
            except asyncio.CancelledError as error:
                return Told(at, now_ns(), describe_error(error), None, put, in_vain)
            end = now_ns()
            found = answer.json() if answer.content else {}
            if answer.status_code >= 400:
                problem = describe_problem(answer.status_code, found)
                return Told(at, end, {**problem, "node": node}, None, put, in_vain)
            if "amount" not in found:
                return Told(at, end, DONE, found, put, in_vain)
            grant = HttpGrant(found, node)
            return Told(at, end, {**describe_grant(grant), "node": node}, grant, put, in_vain)
        return Told(at, now_ns(), {"is": "unknown", "why": why, "lost": True})

    async def acquire(self, operation: Operation) -> Told:
        wait_s = operation["wait_ms"] / 1000
        body = {"tenant": operation["tenant"], "wait": wait_s}
        if operation.get("key"):
            body["key"] = operation["key"]
        if operation["do"] == "claim":
            body["names"] = operation["names"]
            return await self._post(f"/v1/resources/{operation['resource']}/claims", body, wait_s)
        body["amount"] = operation["amount"]
        return await self._post(f"/v1/resources/{operation['resource']}/grants", body, wait_s)

    async def settle(self, grant: HttpGrant, used: int) -> Told:
        return await self._post(f"/v1/grants/{grant.body['id']}/settle", {"used": used}, 0.0, grant.node)

    async def more(self, grant: HttpGrant, names: list[str], wait_s: float) -> Told:
        raise AssertionError("the HTTP API has no such thing")

    async def release(self, grant: HttpGrant) -> Told:
        return await self._send("DELETE", f"/v1/grants/{grant.body['id']}", 0.0, grant.node)

    async def settle_by_id(self, resource: str, id: str, used: int | None) -> Told:
        return await self._post(f"/v1/resources/{resource}/settlements", {"id": id, "used": used})

    async def verb(self, resource: str, verb: str, **arguments: Any) -> Told:
        """Of tasks alone. Work that was submitted here fails: its payload is a text, and no call."""
        path = f"/v1/resources/{resource}/tasks"
        if verb == "submit":
            body = {key: arguments[key] for key in ("tenant", "names", "key") if arguments[key]}
            told = await self._post(path, body)
            return told if told.value is None else replace(told, value=told.value["id"])
        if verb == "cancel":
            return await self._send("DELETE", f"{path}/{arguments['id']}")
        wait_s = arguments["timeout"]
        return await self._send("GET", f"{path}/{arguments['id']}", wait_s, params={"wait": wait_s})

    async def close(self) -> None:
        await self._client.aclose()


def make_context(tls: Any) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=tls.ca)
    context.load_cert_chain(tls.cert, tls.key)
    return context
