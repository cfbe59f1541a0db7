"""The examples of docs/envoy.md and docs/memcached.md, as they stand there, run."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from bursar.cli import main
from bursar.demo.ports import find_free_port
from bursar_lab.experiments.envoy.load import Load
from bursar_lab.experiments.envoy.processes import Bursar, find_envoy, find_ports
from bursar_lab.processes import Process

DOCS = Path(__file__).parents[2] / "docs"


def block(page: str, language: str, first_line: str) -> str:
    """The code block of a page that begins with this line."""
    found = re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    (text,) = [code for code in found if code.startswith(first_line)]
    return str(text)


def write_policy(page: str, folder: Path) -> Path:
    file = folder / "policy.toml"
    daemon = f'[daemon]\nhttp = "off"\nstate = "{folder / "state"}"\n'
    file.write_text(block(page, "toml", "# policy.toml") + daemon)
    return file


def command_of(page: str, start: str) -> list[str]:
    """The first command of a page that begins so."""
    rows = (DOCS / page).read_text().splitlines()
    line = next(row for row in rows if row.strip().startswith(f"$ {start}"))
    return shlex.split(line.strip()[2:])


def wait_for_port(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on {port}")


@pytest.mark.needs("memcached")
def test_the_memcached_example_serves_and_refuses(tmp_path: Path) -> None:
    port, backend = find_free_port(), find_free_port()
    file = write_policy("memcached.md", tmp_path)
    file.write_text(file.read_text().replace("11211", str(backend)))
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    server = subprocess.Popen(["memcached", "-l", "127.0.0.1", "-p", str(backend), *user])
    words = command_of("memcached.md", "bursar memcached-proxy policy.toml")
    command = [sys.executable, "-m", "bursar", *words[1:]]
    command[command.index("policy.toml")] = str(file)
    command[command.index("127.0.0.1:11311")] = f"127.0.0.1:{port}"
    proxy = Process(command, tmp_path / "proxy.log")
    try:
        wait_for_port(backend)
        wait_for_port(port)
        until = time.monotonic() + 10
        while talk(port, b"get acme:x\r\n") != b"END\r\n" and time.monotonic() < until:
            time.sleep(0.1)  # the first period's tokens
        got = talk(port, b"set acme:greeting 0 0 5\r\nhello\r\nget acme:greeting\r\n")
        assert got == b"STORED\r\nVALUE acme:greeting 0 5\r\nhello\r\nEND\r\n"
        assert b"CLIENT_ERROR refused: guest has" in talk(port, b"get guest:x\r\n" * 20)
    finally:
        proxy.stop()
        server.kill()
        server.wait()


def talk(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: link.recv(65536), b""))


def print_config(file: Path, port: int, capsys: pytest.CaptureFixture[str]) -> tuple[Any, Any]:
    """The filter and the cluster that `bursar envoy config` prints."""
    words = command_of("envoy.md", "bursar envoy config")
    words[words.index("policy.toml")] = str(file)
    with pytest.raises(SystemExit) as ended:
        main([*words[1:], "--server", f"127.0.0.1:{port}"])
    assert not ended.value.code
    first, _, second = capsys.readouterr().out.partition("# into static_resources.clusters:\n")
    return yaml.safe_load(first), yaml.safe_load(second)


@pytest.mark.needs("envoy")
async def test_the_envoy_example_holds_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_policy("envoy.md", tmp_path)
    ports, listen = find_ports(), find_free_port()
    filters, clusters = print_config(file, ports[2], capsys)
    skeleton = block("envoy.md", "yaml", "# envoy.yaml").replace("port_value: 10000", f"port_value: {listen}")
    config = yaml.safe_load(skeleton)
    connection = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
    connection["typed_config"]["http_filters"][:0] = filters
    config["static_resources"]["clusters"] = clusters
    written = tmp_path / "envoy.yaml"
    written.write_text(yaml.safe_dump(config))
    bursar = Bursar(file, ports, tmp_path / "bursar.log")
    bursar.wait_until_ready()
    envoy = Process(
        [str(find_envoy()), "-c", str(written), "--disable-hot-restart", "--concurrency", "1"],
        tmp_path / "envoy.log",
    )
    try:
        await asyncio.to_thread(wait_for_port, listen)
        load = Load({"envoy": listen})
        load.rates = {("envoy", "guest"): 60.0, ("envoy", "stranger"): 5.0}
        await load.run(6)
        load.close()
        # A second in which a busy machine did not send the load tells nothing.
        full = [second for second in range(1, 6) if load.offered(("envoy",), "guest", second) >= 55]
        rates = [load.admitted(("envoy",), "guest", second) for second in full]
        assert full, "the machine is too busy to send 60 requests a second"
        assert 16 <= sum(rates) / len(rates) <= 24
        assert all(load.admitted(("envoy",), "stranger", second) == 0 for second in range(6))
    finally:
        envoy.stop()
        bursar.stop()


def test_tenant_names_that_yaml_takes_for_something_else_stay_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.toml"
    names = ["no", "on", "1e3", "12", "null", "true", "a: b", "x-y", 'say "hi"', "#1", "acme"]
    rows = "".join(f"'{name}' = {{ limit = \"1/s\" }}\n" for name in names)
    head = '[resource.api]\nkind = "rate"\nservers = { a = "auto" }\nwithout_bursar = { safe = "2/s" }\n'
    file.write_text(head + f"[resource.api.tenant]\n{rows}")
    (found,), _ = print_config(file, 1, capsys)
    matchers = found["typed_config"]["bucket_matchers"]["matcher_tree"]["exact_match_map"]["map"]
    assert sorted(matchers) == sorted(names)
