"""Policies whose quota kind is the toy, and daemons that serve them in this process."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bursar.policy import Policy, build
from bursar.runtime import kinds
from bursar.runtime.daemon import Daemon

from . import toy

MakePolicy = Callable[..., Policy]
Serve = Callable[..., Awaitable[Daemon]]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds.MODULES, "quota", toy.TOY_NAME)


@pytest.fixture
def make_policy(toys: None, tmp_path: Path) -> MakePolicy:
    def make(resource: dict[str, Any] | None = None, **daemon: Any) -> Policy:
        llm = {"kind": "quota", "tenant": {"acme": {"limit": 100}, "beta": {"limit": 5}}}
        settings = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0", "state": str(tmp_path / "state")}
        return build({"resource": {"llm": llm | (resource or {})}, "daemon": settings | daemon})

    return make


@pytest.fixture
async def serve_policy() -> AsyncIterator[Serve]:
    daemons: list[Daemon] = []

    async def serve(policy: Policy, reload_from: str | None = None) -> Daemon:
        daemon = await Daemon.open(policy, reload_from)
        daemons.append(daemon)
        return daemon

    yield serve
    for daemon in daemons:
        await daemon.close()


def url_of(daemon: Daemon) -> str:
    return f"bursar://{daemon.host.world.listening}"


SECURITY = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates made by the very commands of docs/security.md."""
    directory = tmp_path_factory.mktemp("pem")
    script = re.search(r"```sh\n(# make the certificates.*?)```", SECURITY.read_text(), re.DOTALL)
    assert script is not None
    subprocess.run(["bash", "-eu", "-c", script[1]], cwd=directory, check=True, capture_output=True)
    return directory
