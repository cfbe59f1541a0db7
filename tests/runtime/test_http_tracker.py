"""Tasks done by a service over HTTP: whatever it answers is an attempt at most."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from bursar.claims.tracker import Dispatch, Progress, Report
from bursar.errors import PolicyError
from bursar.policy import parse
from bursar.policy.values import Tracker
from bursar.runtime.functions import Call
from bursar.runtime.http_tracker import HttpTracker
from bursar.runtime.kinds import open_resource
from bursar.runtime.world import open_world

DISPATCH = Dispatch(id="t1", key="t1", tenant="ops", payload=b"resize", attempt=1, fences={"a": 2**60})


class Service:
    """Answers what it is told to, one after the other; the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.heard: list[tuple[str, bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
        self.heard.append((head, await reader.readexactly(size)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer != b"silence":
            writer.write(answer)
            writer.close()

    @property
    def methods(self) -> list[str]:
        return [head.partition(" HTTP")[0] for head, _ in self.heard]


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    yield service
    server.close()


def ask(service: Service, **options: float) -> HttpTracker:
    policy = Tracker(url=f"http://127.0.0.1:{service.port}/tasks", timeout_ns=10**9, poll_ns=10**7)
    return HttpTracker(policy, pause_s=0.01, **options)


async def test_a_result_is_what_was_answered_and_the_task_is_told_in_full(service: Service) -> None:
    service.answers = [answer(200, b"resized")]
    assert await ask(service).dispatch(DISPATCH) == Report("ok", b"resized")
    ((head, body),) = service.heard
    assert head.startswith("POST /tasks HTTP/1.0\r\n") and "Idempotency-Key: t1\r\n" in head
    assert msgspec.json.decode(body) == {
        "id": "t1",
        "key": "t1",
        "tenant": "ops",
        "attempt": 1,
        "fences": {"a": str(2**60)},
        "payload": "resize",
    }


async def test_a_function_is_told_by_its_name_and_bytes_as_they_can_be(service: Service) -> None:
    service.answers = [answer(204)]
    call = msgspec.msgpack.encode(Call("resize", {"vm": "vm-7"}))
    for payload in (call, b"\xff\x00"):
        done = await ask(service).dispatch(msgspec.structs.replace(DISPATCH, payload=payload))
        assert done == Report("ok", b"")
    first, second = (msgspec.json.decode(body) for _, body in service.heard)
    assert (first["function"], first["arguments"]) == ("resize", {"vm": "vm-7"})
    assert second["payload_base64"] == "/wA="


async def test_what_is_accepted_is_asked_for_until_it_is_over(service: Service) -> None:
    service.answers = [
        answer(202),
        answer(202, b"half of it"),
        b"nonsense\r\n\r\n",
        answer(500),
        answer(200, b"ok"),
    ]
    assert await ask(service).dispatch(DISPATCH) == Report("ok", b"ok")
    assert service.methods == ["POST /tasks", *["GET /tasks/t1"] * 4]


@pytest.mark.parametrize("status", [429, 503])
async def test_not_now_is_asked_again_with_the_same_key(service: Service, status: int) -> None:
    service.answers = [answer(status), answer(status, b"", "Retry-After: 0"), answer(200, b"ok")]
    assert await ask(service).dispatch(DISPATCH) == Report("ok", b"ok")
    assert service.methods == ["POST /tasks"] * 3
    assert all("Idempotency-Key: t1\r\n" in head for head, _ in service.heard)


async def test_not_now_for_too_long_is_a_failed_attempt(service: Service) -> None:
    service.answers = [answer(503)]
    done = await ask(service, busy_max_s=0.05).dispatch(DISPATCH)
    assert isinstance(done, Report) and done.outcome == "failed" and b"503: not now" in done.result


@pytest.mark.parametrize(
    ("strange", "says"),
    [
        (answer(404, b"no such page"), "404: no such page"),
        (answer(302, b"", "Location: https://elsewhere"), "answered 302"),
        (answer(500, b"x" * 100_000), "answered 500"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 2oo Fine\r\n\r\n", "no HTTP"),
        (b"", "bytes read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "Content-Length is 'many'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "ended after 4 of 9 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "chunked"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, "limit"),
        (answer(200, b"x" * 70_000), "at most 65536 are kept"),
    ],
)
async def test_a_strange_reply_is_a_failed_attempt(service: Service, strange: bytes, says: str) -> None:
    service.answers = [strange] if strange else [strange, answer(500), answer(500)]
    done = await ask(service, busy_max_s=0.05).dispatch(DISPATCH)
    assert isinstance(done, Report) and done.outcome == "failed"
    assert says in done.result.decode() or strange == b"", done


async def test_a_request_without_an_answer_is_looked_for_before_it_is_made_again(service: Service) -> None:
    service.answers = [b"", answer(404), answer(201, b"made")]
    assert await ask(service).dispatch(DISPATCH) == Report("ok", b"made")
    assert service.methods == ["POST /tasks", "GET /tasks/t1", "POST /tasks"]
    service.heard.clear()
    service.answers = [b"", answer(202), answer(200, b"was made")]
    assert await ask(service).dispatch(DISPATCH) == Report("ok", b"was made")
    assert service.methods == ["POST /tasks", "GET /tasks/t1", "GET /tasks/t1"]


@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        (answer(200, b"done"), lambda told: told == Report("ok", b"done")),
        (answer(202), lambda told: told is Progress.RUNNING),
        (answer(410), lambda told: told is Progress.LOST),
    ],
)
async def test_a_successor_asks_how_it_stands(
    service: Service, given: bytes, is_right: Callable[[object], bool]
) -> None:
    service.answers = [given]
    assert is_right(await ask(service).status(DISPATCH))


async def test_what_is_cancelled_is_told_and_ends_as_it_says(service: Service) -> None:
    service.answers = [answer(202), answer(202)]
    tracker = ask(service)
    doing = asyncio.ensure_future(tracker.dispatch(DISPATCH))
    async with asyncio.timeout(10):
        while "GET /tasks/t1" not in service.methods:
            await asyncio.sleep(0.005)
    service.answers = [answer(410)]
    await tracker.cancel(DISPATCH, "it was cancelled")
    assert await doing == Report("cancelled", b"it was cancelled")
    assert "DELETE /tasks/t1" in service.methods


POLICY = """
[resource.machines]
kind = "claim"
tracker = {{ url = "http://127.0.0.1:{port}/tasks", poll = "10ms" }}
"""


async def test_the_tasks_of_a_policy_with_a_tracker_are_done_by_its_service(service: Service) -> None:
    service.answers = [answer(200, b"resized")]
    policy = parse(POLICY.format(port=service.port)).resource("machines")
    world = await open_world("n", store="memory://tracked")
    door = open_resource(world, policy)
    await door.start()
    id = await door.verb("submit", tenant="ops", names="vm-7:E", payload=b"resize")
    async with asyncio.timeout(20):
        while (task := await door.verb("wait_for", id=id))["state"] != "released":
            continue
    assert (task["outcome"], task["result"]) == ("ok", b"resized")
    await door.stop()
    await world.close()


def test_a_service_beyond_this_machine_is_asked_with_tls() -> None:
    with pytest.raises(PolicyError, match="tasks would be sent in clear"):
        parse(POLICY.format(port=1).replace("127.0.0.1", "example.com"))
