"""Every program in examples/ runs, and shows what it says it shows."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bursar.demo.ports import find_free_port
from bursar_lab.processes import await_port

EXAMPLES = Path(__file__).parent.parent / "examples"
TIMEOUT_S = 90
TESTED = {
    "blkio_host",
    "exactly_once",
    "fastapi_service",
    "llm_gateway",
    "memcached_cluster",
    "vm_operations",
}


def run(name: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def started(command: list[str], port: int) -> Iterator[None]:
    """A program that listens there."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_port(port, process, TIMEOUT_S)
        yield
    finally:
        process.terminate()
        process.wait(20)


def test_every_example_is_tested_and_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}.py`" in listed for name in TESTED)


def test_the_fastapi_service_serves_and_refuses() -> None:
    port = find_free_port()
    with started([sys.executable, str(EXAMPLES / "fastapi_service.py"), str(port)], port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        answers = []
        for tenant in ["acme", *["globex"] * 60]:
            connection.request("GET", "/items", headers={"x-tenant": tenant})
            answer = connection.getresponse()
            answers.append((answer.status, answer.getheader("retry-after"), answer.read()))
            assert answer.getheader("ratelimit-policy") in ('"api";q=300;w=1', '"api";q=20;w=1')
        connection.request("GET", "/items")
        nobody = connection.getresponse()
        assert answers[0][0] == 200 and b'"acme"' in answers[0][2]
        refused = [answer for answer in answers if answer[0] == 429]
        assert any(answer[0] == 200 for answer in answers[1:])
        assert all(answer[1] is not None for answer in refused)
        assert {answer[0] for answer in answers} <= {200, 429}
        assert nobody.status == 400


def test_the_gateway_stops_at_the_budget(tmp_path: Path) -> None:
    out = run("llm_gateway", cwd=tmp_path)
    found = re.search(r"after (\d+) answers and (\d+) tokens", out)
    assert found, out
    # 1,000 tokens, 40 an answer, and 400 must be free to begin one: 16 answers.
    assert found.groups() == ("16", "640")
    assert out.endswith("THE COMPANY ITSELF HAS MORE\n")


@pytest.mark.needs("memcached")
def test_acme_gets_its_reservation_from_the_memcached_cluster(tmp_path: Path) -> None:
    ports = [find_free_port(), find_free_port()]
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    first, second = (["memcached", *user, "-l", "127.0.0.1", "-p", str(port)] for port in ports)
    with started(first, ports[0]), started(second, ports[1]):
        out = run("memcached_cluster", *(f"127.0.0.1:{port}" for port in ports), cwd=tmp_path)
    rates = {tenant: int(rate) for tenant, rate in re.findall(r"(\w+): (\d+) a second", out)}
    # Measured over whole seconds that need not be whole periods, on a machine with other work.
    assert rates["acme"] >= 0.75 * 120, rates
    assert rates["greedy"] <= 1.25 * 150, rates


def test_operations_on_machines_take_turns_and_the_late_is_refused(tmp_path: Path) -> None:
    out = run("vm_operations", cwd=tmp_path)
    fences = [int(fence) for fence in re.findall(r"done with fence (\d+)", out)]
    assert len(fences) == 3 and fences == sorted(set(fences))
    assert "refused: a late write" in out


def test_what_is_tried_more_than_once_happens_once(tmp_path: Path) -> None:
    out = run("exactly_once", cwd=tmp_path)
    found = re.search(r"a worker was killed\n20 transfers, all ok: (\d+) tries\nbalance: 20\n", out)
    assert found is not None and int(found[1]) >= 20, out


@pytest.mark.needs("root")
def test_a_disk_is_shared_by_weight(tmp_path: Path) -> None:
    from bursar.errors import UsageError
    from bursar.integrations.blkio.groups import find_controller

    try:
        controller = find_controller()
        probe = controller.root / f"bursar-example-probe-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
    except (UsageError, OSError) as error:
        pytest.skip(f"block I/O control groups cannot be had here: {error}")
    folder = Path("/var/tmp") / f"bursar-example-{os.getpid()}"
    folder.mkdir()
    try:
        out = run("blkio_host", str(folder), cwd=tmp_path)
    finally:
        shutil.rmtree(folder)
    rates = {name: float(rate) for name, rate in re.findall(r"(\w+): ([\d.]+) MiB", out)}
    # 3 to 1; a disk that others use too may fail to serve one of them in time.
    assert 2 < rates["gold"] / rates["bronze"] < 4.5, rates
    assert list(controller.root.glob("bursar-example-*")) == []
