"""A real Prometheus scrapes a real daemon, and a real promtool reads what it says."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.promtool import check_with_promtool

import bursar as api
from bursar.demo.ports import find_free_port

from .processes import Process, bursar

TENANTS = 200
TOKEN = "a token of some length"


def serve(folder: Path) -> Process:
    """A daemon (of toys) with more tenants than labels, whose metrics want a token."""
    secret = folder / "metrics.token"
    secret.write_text(f"{TOKEN}\n")
    listed = "".join(f'"tenant {n}" = {{ limit = 100 }}\n' for n in range(TENANTS))
    policy = folder / "policy.toml"
    policy.write_text(
        f'[daemon]\nlisten = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\nmetrics_tenants = 150\n'
        f'metrics_token_file = "{secret}"\nstate = "{folder}/state"\n'
        f'[resource.llm]\nkind = "quota"\n[resource.llm.tenant]\n{listed}'
    )
    return bursar("serve", str(policy), "--log", "json")


@contextmanager
def run_prometheus(folder: Path, target: str) -> Iterator[str]:
    """Its own address. It is told to drop what is not as it should be."""
    config = folder / "prometheus.yml"
    config.write_text(
        "scrape_configs:\n- job_name: bursar\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n"
        f"  authorization: {{ credentials: {TOKEN} }}\n"
        f"  static_configs: [ {{ targets: ['{target}'] }} ]\n"
    )
    at = f"127.0.0.1:{find_free_port()}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb"]
    command += [f"--web.listen-address={at}", "--log.level=warn"]
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://{at}"
    finally:
        child.terminate()
        child.wait(20)


def ask(prometheus: str, query: str) -> list[dict[str, Any]]:
    url = f"{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return found
    except OSError:  # it is starting
        return []


def wait_for(prometheus: str, query: str, value: float) -> list[dict[str, Any]]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = ask(prometheus, query)
        if found and float(found[0]["value"][1]) == value:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{query} is not {value}: {ask(prometheus, query)}")


@pytest.mark.needs("prometheus")
def test_prometheus_scrapes_a_daemon_with_more_tenants_than_labels(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        ready = daemon.wait_for("daemon.ready")
        with api.sync.connect(f"bursar://{ready['address']}") as b:
            for number in range(160):
                with b.resource("llm").acquire(f"tenant {number}", 1 + (number < 150)):
                    pass
        target = f"127.0.0.1:{ready['http'].rpartition(':')[2]}"
        with run_prometheus(tmp_path, target) as prometheus:
            wait_for(prometheus, 'up{job="bursar"}', 1)
            assert ask(prometheus, "bursar_up")[0]["value"][1] == "1"
            wait_for(prometheus, 'bursar_tenant_granted_total{tenant="tenant 7"}', 2)
            wait_for(prometheus, "sum(bursar_tenant_granted_total)", 310)
            wait_for(prometheus, "count(bursar_tenant_granted_total)", 151)
            (info,) = ask(prometheus, "bursar_policy_info")
            assert (info["metric"]["resource"], info["metric"]["kind"]) == ("llm", "quota")
            waits = "histogram_quantile(0.5, sum by (le) (bursar_waited_seconds_bucket))"
            assert float(ask(prometheus, waits)[0]["value"][1]) < 5


@pytest.mark.needs("promtool")
def test_promtool_has_nothing_to_say_about_a_daemon(tmp_path: Path) -> None:
    with serve(tmp_path) as daemon:
        at = daemon.wait_for("daemon.ready")["http"]
        wanted = urllib.request.Request(f"http://{at}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(wanted, timeout=5) as answer:
            text = answer.read().decode()
    check_with_promtool(text)
