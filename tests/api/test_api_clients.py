"""Clients without Python: curl and Node acquire, settle, are refused, and claim."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bursar.runtime.daemon import Daemon

NODE = Path(__file__).with_name("client.mjs")


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def curl(at: object, path: str, body: Any = None, *options: str) -> tuple[int, Any]:
    sent = () if body is None else ("-H", "Content-Type: application/json", "-d", json.dumps(body))
    text = await run("curl", "-s", "-w", "\n%{http_code}", *sent, *options, f"http://{at}/v1{path}")
    answer, _, status = text.rpartition("\n")
    return int(status), json.loads(answer) if answer else None


@pytest.mark.needs("curl")
async def test_curl_acquires_settles_is_refused_and_claims(daemon: Daemon) -> None:
    at = daemon.http_at
    status, grant = await curl(at, "/resources/llm/grants", {"tenant": "globex", "amount": 10})
    assert status == 201 and grant["remaining"] == 0
    assert (await curl(at, f"/grants/{grant['id']}/settle", {"used": 4}))[0] == 204
    status, problem = await curl(at, "/resources/llm/grants", {"tenant": "globex", "amount": 7})
    assert (status, problem["limit"], problem["remaining"]) == (429, 10, 6)
    status, claim = await curl(at, "/resources/dc/claims", {"tenant": "ops", "names": ["vm-7:E"]})
    assert status == 201 and int(claim["fence"]["vm-7"]) > 0
    assert (await curl(at, "/resources/dc/claims", {"tenant": "ops", "names": ["vm-7:S"]}))[0] == 429
    assert (await curl(at, f"/grants/{claim['id']}", None, "-X", "DELETE"))[0] == 204
    body = {"tenant": "ops", "names": ["vm-7:S"], "wait": 5}
    assert (await curl(at, "/resources/dc/claims", body))[0] == 201


@pytest.mark.needs("node")
async def test_node_acquires_settles_is_refused_and_claims(daemon: Daemon) -> None:
    said = json.loads(await run("node", str(NODE), f"http://{daemon.http_at}/v1"))
    assert said == {
        "acquired": [201, 10],
        "settled": 204,
        "refused": [429, "limit", 10, 6],
        "claimed": 201,
        "taken": 429,
        "waited": [201, True],
        "renewed": 200,
        "rate": {"policy": '"cache";q=20;w=1', "retry": True},
    }
