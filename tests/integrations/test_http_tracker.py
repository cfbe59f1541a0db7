from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from bursar.claims.resource import open_resource
from bursar.claims.tracker import Dispatch, Progress
from bursar.errors import UsageError
from bursar.integrations.http_tracker import HttpTracker
from bursar.policy import ClaimPolicy
from bursar.runtime.world import open_world


class Service(BaseHTTPRequestHandler):
    taken: dict[str, dict[str, Any]]
    asked: dict[str, int]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.taken[self.path] = {**body, "header": self.headers["Bursar-Fence"]}
        self.send_response(400 if body["tenant"] == "banned" else 202)
        self.end_headers()

    def do_GET(self) -> None:
        self.asked[self.path] = self.asked.get(self.path, 0) + 1
        self.send_response(200 if self.path in self.taken else 404)
        self.end_headers()
        state = "running" if self.asked[self.path] == 1 else "ok"
        self.wfile.write(json.dumps({"state": state, "result": "done"}).encode())

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def service() -> Iterator[tuple[str, type[Service]]]:
    kind = type("OneService", (Service,), {"taken": {}, "asked": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/tasks", kind
    server.shutdown()
    server.server_close()


async def test_a_task_is_done_by_the_service_and_its_end_is_learnt(service: tuple[str, Any]) -> None:
    url, seen = service
    world = await open_world("n", store="memory://")
    resource = open_resource(world, "x", ClaimPolicy(name="x"), tracker=HttpTracker(url))
    await resource.start()
    id = await resource.verb("submit", tenant="ops", names="vm-7:E", payload=b"\x00go")
    end = await resource.verb("wait_for", id=id, timeout=20)
    assert (end["outcome"], end["result"]) == ("ok", b"done")
    told = seen.taken[f"/tasks/{id}"]
    assert (told["key"], told["payload"], told["attempt"]) == (id, "AGdv", 1)
    assert told["header"] == f'"vm-7"={told["fences"]["vm-7"]}'
    banned = await resource.verb("submit", tenant="banned", names="vm-7:E")
    refused = await resource.verb("wait_for", id=banned, timeout=20)
    assert refused["outcome"] == "failed" and b"HTTP 400" in refused["result"]
    await resource.stop()
    await world.close()


async def test_what_the_service_does_not_know_is_lost_and_silence_is_not(service: tuple[str, Any]) -> None:
    url, _ = service
    dispatch = Dispatch(id="t1", key="t1", tenant="x", payload=b"", attempt=1, fences={})
    assert await HttpTracker(url).status(dispatch) is Progress.LOST
    assert await HttpTracker("http://127.0.0.1:1/x").status(dispatch) is Progress.RUNNING
    with pytest.raises(UsageError, match="http://"):
        HttpTracker("ftp://x")
