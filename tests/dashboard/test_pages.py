"""The pages in a real browser: what they show is what the API says, from a real daemon."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest

import bursar
from bursar.dashboard.views.parts import write
from bursar.demo.ports import find_free_port

from .browser import Tab, browse

pytestmark = pytest.mark.needs("chromium")

MAIN = "import sys; from bursar.cli import main; main(sys.argv[1:])"
WRONG = (
    "from bursar.dashboard.views import parts, rates; right = parts.write; "
    "parts.write = lambda value: right(value + 1 if value == 3000 else value); " + MAIN
)
"""A dashboard that shows 3,001 where the figure is 3,000."""

POLICY = """
[daemon]
listen = "127.0.0.1:{port}"
http = "127.0.0.1:{metrics}"
state = "{state}"
[resource.cache]
kind = "rate"
servers = {{ a = "5k/s", b = "5k/s" }}
[resource.cache.tenant]
acme = {{ reservation = "3k/s", limit = "6k/s" }}
"<script>alert(1)<script>" = {{ limit = "2k/s" }}
[resource.disk]
kind = "share"
capacity = "500/s"
[resource.disk.tenant]
simulation = {{ weight = 3 }}
backup = {{ weight = 1 }}
[resource.many]
kind = "share"
capacity = "10k/s"
[resource.many.tenant]
""" + "".join(f"customer-{k} = {{{{}}}}\n" for k in range(120))

ODD = "<script>alert(1)<script>"

READ_PAGE = """(() => {
  const number = parseInt(document.querySelector('[data-sample]').innerText.replace('sample ', ''));
  const tables = {};
  for (const table of document.querySelectorAll('[data-table]'))
    tables[table.dataset.table] = [...table.querySelectorAll('tbody tr')]
      .map(row => [...row.querySelectorAll('td')].map(cell => cell.innerText.trim()));
  const charts = {};
  for (const chart of document.querySelectorAll('[data-chart]')) {
    const drawn = getElement(parseInt(chart.id.slice(1))).chart?.getOption();
    charts[chart.dataset.chart] = drawn ? {
      x: drawn.xAxis?.[0]?.data, y: drawn.yAxis?.[0]?.data, series: drawn.series.map(s => s.data)} : null;
  }
  return {number, tables, charts};
})()"""


@contextmanager
def run(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


def read_until(stream: Any, pattern: str) -> str:
    said = []
    for line in stream:
        said.append(line)
        found = re.search(pattern, line)
        if found:
            return found.group(0)
    raise AssertionError(f"no {pattern} in:\n{''.join(said)}")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon that granted and refused something, and is quiet now."""
    folder = tmp_path_factory.mktemp("daemon")
    port = find_free_port()
    policy = folder / "policy.toml"
    policy.write_text(POLICY.format(port=port, metrics=find_free_port(), state=folder / "state"))
    with run(MAIN, "serve", str(policy)) as process:
        read_until(process.stderr, "daemon.ready")
        url = f"bursar://127.0.0.1:{port}"
        asyncio.run(use(url))
        yield url


async def use(url: str) -> None:
    async with await bursar.connect(url) as b:
        for tenant, amount in (("acme", 40), (ODD, 7), ("acme", 2)):
            for _ in range(5):
                async with b.resource("cache").acquire(tenant, amount, wait=5):
                    pass
        with pytest.raises(bursar.Refused):
            await b.resource("cache").acquire("acme", 7000)
        async with b.resource("disk").acquire("simulation", 3, wait=5):
            pass


@pytest.fixture(scope="module")
def dashboard(daemon: str) -> Iterator[str]:
    with run(MAIN, "dashboard", daemon, "--port", "0") as process:
        yield read_until(process.stdout, r"http://[\d.:]+")


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browse() as tab:
        tab.resize(1280, 900)
        yield tab


def fetch(url: str) -> Any:
    with urlopen(url, timeout=10) as answer:
        return json.load(answer)


def open_page(tab: Tab, url: str) -> dict[str, Any]:
    tab.open(url)
    tab.wait_for("document.querySelector('[data-sample]')?.innerText.startsWith('sample')")
    tab.wait_for(
        "!document.querySelector('[data-table]') || !!document.querySelector('[data-table] tbody tr td')"
    )
    page: dict[str, Any] = tab.evaluate(READ_PAGE)
    return page


def compare_rate(tab: Tab, dashboard: str) -> None:
    """Every figure of the rate page with the API's, for the sample that the page shows."""
    page = open_page(tab, f"{dashboard}/rates")
    said = fetch(f"{dashboard}/api/statistics/{page['number']}")["statistics"]["cache"]
    rows = {row[0]: row[1:] for row in page["tables"]["cache/tenants"]}
    assert set(rows) == set(said["tenants"])
    for tenant, row in said["tenants"].items():
        shown = dict(
            zip(
                ("reservation", "limit", "gets", "granted", "refused", "would_refuse", "shortfall"),
                rows[tenant],
                strict=True,
            )
        )
        del shown["gets"]
        assert shown == {field: write(row[field]) for field in shown}
    compare_heat(page["charts"]["cache/tokens"], said, "allowance")
    compare_heat(page["charts"]["cache/waiting"], said, "waiting")


def compare_heat(chart: dict[str, Any], said: dict[str, Any], field: str) -> None:
    (cells,) = chart["series"]
    drawn = {(chart["x"][x], chart["y"][y]): value for x, y, value in cells}
    expected = {
        (server, tenant): figures[field]
        for server, row in said["servers"].items()
        for tenant, figures in row["tenants"].items()
    }
    assert drawn == expected


def test_the_rate_page_shows_what_the_api_says(tab: Tab, dashboard: str) -> None:
    compare_rate(tab, dashboard)
    assert tab.errors == []


def test_the_api_says_what_the_daemon_says(daemon: str, dashboard: str) -> None:
    async def ask() -> tuple[Any, Any]:
        async with await bursar.connect(daemon) as b:
            return await b.statistics("cache"), await b.statistics("disk")

    cache, disk = asyncio.run(ask())
    said = fetch(f"{dashboard}/api/statistics")["statistics"]
    # Nobody asks any more, so what was counted stands still.
    for tenant, tally in cache.tenants.items():
        assert msgspec.to_builtins(tally).items() <= said["cache"]["tenants"][tenant].items()
    assert cache.tenants["acme"].granted == 210
    for tenant, tally in disk.tenants.items():
        assert said["disk"]["tenants"][tenant]["granted"] == tally.granted


def test_a_wrong_figure_is_noticed(tab: Tab, daemon: str) -> None:
    """The comparison above can fail: it does, for a dashboard that shows one figure wrong."""
    with run(WRONG, "dashboard", daemon, "--port", "0") as process:
        wrong = read_until(process.stdout, r"http://[\d.:]+")
        with pytest.raises(AssertionError, match=r"3,001"):
            compare_rate(tab, wrong)


def test_the_share_page_shows_what_the_api_says(tab: Tab, dashboard: str) -> None:
    page = open_page(tab, f"{dashboard}/shares")
    said = fetch(f"{dashboard}/api/statistics/{page['number']}")["statistics"]["disk"]
    rows = {row[0]: row for row in page["tables"]["disk/tenants"]}
    for tenant, row in said["tenants"].items():
        fields = {1: "weight", 2: "demand", 3: "initial", 8: "tokens", 9: "record", 10: "rate", 11: "granted"}
        assert {at: rows[tenant][at] for at in fields} == {
            at: write(row[field]) for at, field in fields.items()
        }


def find(tab: Tab, table: str, text: str) -> None:
    tab.evaluate(f"document.querySelector('input[data-find=\"{table}\"]').focus()")
    tab.send("Input.insertText", text=text)


def read_first(table: str) -> str:
    """The first column of a table, as a script."""
    cells = f"document.querySelectorAll('[data-table=\"{table}\"] tbody tr td:first-child')"
    return f"[...{cells}].map(cell => cell.innerText.trim())"


def test_the_fleet_page_shows_nodes_and_what_the_api_says_of_them(tab: Tab, dashboard: str) -> None:
    page = open_page(tab, f"{dashboard}/fleet")
    said = fetch(f"{dashboard}/api/statistics/{page['number']}")
    ((name, record),) = said["nodes"].items()
    ((node, address, version, build, _, state, problem),) = page["tables"]["fleet/nodes"]
    assert (node, address, build) == (name, record["address"], record["build"])
    assert (version, state, problem) == (write(record["version"] or None), "up", "")
    assert [row[:3] for row in page["tables"]["fleet/resources"]] == [
        ["cache", "rate", "1 of 1"],
        ["disk", "share", "1 of 1"],
        ["many", "share", "1 of 1"],
    ]
    assert [row[:2] for row in page["tables"]["fleet/parts"]] == [
        [resource, name] for resource in ("cache", "disk", "many")
    ]


def test_of_many_tenants_fifty_are_shown_and_any_is_found(tab: Tab, dashboard: str) -> None:
    for address, table in (("fleet", "fleet/tenants"), ("shares", "many/tenants")):
        page = open_page(tab, f"{dashboard}/{address}")
        assert len(page["tables"][table]) == 50
        find(tab, table, "OMER-11")
        wanted = ["customer-11", *(f"customer-{k}" for k in range(110, 120))]
        tab.wait_for(f"{read_first(table)}.sort().join() === {json.dumps(','.join(sorted(wanted)))}")
    assert tab.errors == []


def test_what_a_tenant_gets_is_the_difference_of_two_samples(tab: Tab, daemon: str, dashboard: str) -> None:
    asyncio.run(use(daemon))
    found = False
    for _ in range(20):
        page = open_page(tab, f"{dashboard}/rates")
        old, new = (fetch(f"{dashboard}/api/statistics/{page['number'] - k}") for k in (1, 0))
        counted = [sample["statistics"]["cache"]["tenants"]["acme"]["granted"] for sample in (old, new)]
        gets = max(0, counted[1] - counted[0]) / (new["at_s"] - old["at_s"])
        rows = {row[0]: row[3] for row in page["tables"]["cache/tenants"]}
        assert rows["acme"] == write(round(gets, 1))
        found = found or gets > 0
        if found:
            return
        asyncio.run(use(daemon))
    raise AssertionError("no sample saw acme get anything")


def test_a_name_is_shown_never_run(tab: Tab, dashboard: str) -> None:
    page = open_page(tab, f"{dashboard}/rates")
    assert ODD in [row[0] for row in page["tables"]["cache/tenants"]]
    assert (
        tab.evaluate("[...document.querySelectorAll('script')].some(s => s.innerText === 'alert(1)')")
        is False
    )


def test_nothing_comes_from_elsewhere(tab: Tab, dashboard: str) -> None:
    for name in ("rates", "shares", "pools", "quotas", "claims", "fleet", "alerts"):
        open_page(tab, f"{dashboard}/{name}")
    hosts = {url.split("/")[2] for url in tab.requests if url.startswith(("http", "ws"))}
    assert {host.split(":")[0] for host in hosts} == {"127.0.0.1"}
    assert tab.errors == []


def test_a_page_without_resources_says_so(tab: Tab, dashboard: str) -> None:
    open_page(tab, f"{dashboard}/pools")
    assert "The policy has no resource of kind pool." in tab.evaluate("document.body.innerText")


def test_keys_turn_pages_and_the_light(tab: Tab, dashboard: str) -> None:
    tab.prefer("light")
    open_page(tab, f"{dashboard}/rates")
    dark = "document.body.classList.contains('body--dark')"
    assert tab.evaluate(dark) is False
    tab.press("d")
    tab.wait_for(dark)
    tab.press("2")
    tab.wait_for("location.pathname === '/shares' && !!document.querySelector('[data-sample]')")
    tab.wait_for(dark)
    tab.press("d")
    tab.wait_for(f"!{dark}")


def test_a_phone_needs_no_sideways_scrolling(tab: Tab, dashboard: str) -> None:
    tab.resize(390, 844, mobile=True)
    try:
        for name in ("rates", "shares", "fleet", "alerts"):
            open_page(tab, f"{dashboard}/{name}")
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390, name
    finally:
        tab.resize(1280, 900)


def test_a_name_of_somebody_else_is_not_let_in(dashboard: str) -> None:
    from urllib.error import HTTPError

    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{dashboard}/api/statistics", headers={"Host": "evil.example"}), timeout=10)
    assert refused.value.code == 400


def test_a_daemon_that_dies_is_an_alert(tab: Tab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    port = find_free_port()
    policy.write_text(POLICY.format(port=port, metrics=find_free_port(), state=tmp_path / "state"))
    with run(MAIN, "serve", str(policy)) as served:
        read_until(served.stderr, "daemon.ready")
        with run(MAIN, "dashboard", f"bursar://127.0.0.1:{port}", "--port", "0") as shown:
            url = read_until(shown.stdout, r"http://[\d.:]+")
            open_page(tab, f"{url}/alerts")
            served.kill()
            served.wait(10)
            tab.wait_for("document.querySelector('[data-alert=error]')?.innerText.includes('is silent')")


BUDGET = """
[daemon]
listen = "127.0.0.1:{port}"
http = "off"
state = "{state}"
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = {{ limit = 100 }}
"""


async def spend(url: str) -> None:
    async with await bursar.connect(url) as b, b.resource("llm").acquire("acme", 85, wait=10):
        pass


def test_what_a_daemon_told_is_listed(tab: Tab, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    port = find_free_port()
    policy.write_text(BUDGET.format(port=port, state=tmp_path / "state"))
    with run(MAIN, "serve", str(policy)) as served:
        read_until(served.stderr, "daemon.ready")
        url = f"bursar://127.0.0.1:{port}"
        asyncio.run(spend(url))
        read_until(served.stderr, "alert.budget")
        with run(MAIN, "dashboard", url, "--port", "0") as shown:
            page = open_page(tab, f"{read_until(shown.stdout, r'http://[0-9.:]+')}/alerts")
    ((_, alert, resource, what, count),) = page["tables"]["alerts/recent"]
    assert (alert, resource, count) == ("budget", "llm", "1")
    assert what == "acme has used 80 % of its limit"


def test_a_taken_port_is_the_users_to_change(daemon: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "dashboard", daemon, "--port", port],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1 and "choose another --port" in done.stderr and "Traceback" not in done.stderr
