"""The OpenAPI document: of what there is, and nothing else; and what it says is so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tests.api.conftest import write_policy

from bursar.api import openapi
from bursar.api.operations import OPERATIONS
from bursar.runtime.daemon import Daemon

ROOT = Path(__file__).parents[2]
FUZZING = ROOT / "tests" / "api" / "schemathesis.toml"


async def test_every_route_is_in_the_document_and_no_other(client: httpx.AsyncClient) -> None:
    document = (await client.get("/v1/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    described = {(method, path) for path, each in document["paths"].items() for method in each}
    listed = {(each.method.lower(), re.sub(r":\w+}", "}", each.path)) for each in OPERATIONS}
    assert described - listed == {("get", "/live"), ("get", "/ready"), ("get", "/metrics")}
    assert listed <= described
    names = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(names) == len(set(names))


def test_every_schema_is_one() -> None:
    document = openapi.describe(OPERATIONS)
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    refs = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert refs <= set(document["components"]["schemas"])


async def test_the_page_needs_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    page = await client.get("/v1/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "<script" not in page.text and "://" not in page.text and "src=" not in page.text
    for operation in OPERATIONS:
        assert f"id={operation.name}" in page.text


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """A daemon in a process of its own: what tries everything must not share our loop."""
    file = tmp_path / "policy.toml"
    file.write_text(write_policy(tmp_path))
    command = [sys.executable, "-m", "bursar", "serve", str(file), "--log", "json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    events: list[Any] = []
    for line in process.stderr:
        events.append(json.loads(line))
        if events[-1]["event"] == "daemon.ready":
            break
    try:
        yield events[-1]["http"]
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "http.failed" not in rest, rest[-3000:]


def test_nothing_that_the_document_allows_is_answered_otherwise(served: str, tmp_path: Path) -> None:
    """A short run of schemathesis; docs/http.md has the long one."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(FUZZING), "run"]
    command += [f"http://{served}/v1/openapi.json", "--max-examples=8"]
    command += ["--phases=examples,coverage,fuzzing,stateful"]
    command += ["--seed=1", "--max-time=12", "--max-failures=20", "--no-color"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=100, env={**os.environ, "CI": "1"}
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


async def test_the_document_is_the_daemons_own(client: httpx.AsyncClient, daemon: Daemon) -> None:
    assert (await client.get("/v1/openapi.json")).json() == json.loads(
        json.dumps(openapi.describe(OPERATIONS))
    )
