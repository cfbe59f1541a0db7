"""The configuration that `bursar envoy config` prints, in a real Envoy: whom it lets through."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml
from test_docs_examples import block, wait_for_port

from bursar.demo.ports import find_free_port
from bursar.errors import UsageError
from bursar.integrations.envoy.config import make_cluster, make_filter, write_config, write_regex
from bursar.policy import RatePolicy, Tls, parse
from bursar_lab.experiments.envoy.processes import Bursar, find_envoy, find_ports
from bursar_lab.processes import Process

TENANTS = 10_000
NAMES = ["", "unknown", "t10000", "T1", "t1,t2", "*", "acme/*", "%74%31", "1", "\u00e9"]
"""Names that the policy does not list, some of them nearly."""


def write_policy(folder: Path, count: int = TENANTS, limit: str = "5/s") -> Path:
    file = folder / "policy.toml"
    tls = {key: str(folder / f"node-a.{end}") for key, end in (("cert", "crt"), ("key", "key"))}
    tls["ca"] = str(folder / "ca.crt")
    files = ", ".join(f'{key} = "{path}"' for key, path in tls.items())
    rows = "".join(f't{number} = {{ limit = "{limit}" }}\n' for number in range(count))
    file.write_text(
        '[resource.api]\nkind = "rate"\nservers = { service = "100k/s" }\nwithout_bursar = "keep"\n'
        f"[resource.api.tenant]\n{rows}"
        f'[daemon]\nhttp = "off"\nname = "node-a"\nstate = "{folder / "state"}"\ntls = {{ {files} }}\n'
    )
    return file


def rate_policy(file: Path) -> RatePolicy:
    policy = parse(file.read_text()).resource("api")
    assert isinstance(policy, RatePolicy)
    return policy


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    text = block("security.md", "sh", "# make the certificates")
    subprocess.run(["bash", "-eu", "-c", text], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def paste(printed: str, port: int) -> str:
    """The two blocks that `bursar envoy config` prints, pasted into the page's skeleton as a person would."""
    http_filter, _, cluster = printed.partition("# into static_resources.clusters:\n")
    skeleton = block("envoy.md", "yaml", "# envoy.yaml").replace("port_value: 10000", f"port_value: {port}")
    for mark, text, pad in (("# the filter", http_filter, 10), ("# the cluster", cluster, 2)):
        lines = "".join(f"{' ' * pad}{line}\n" for line in text.splitlines())
        skeleton = skeleton.replace(f"{' ' * pad}{mark}\n", lines)
    return skeleton


@pytest.mark.needs("envoy", "openssl")
async def test_only_listed_tenants_pass_however_many_there_are_and_over_tls(certificates: Path) -> None:
    """Of ten thousand tenants each is held to its limit, and a request without a tenant, or with a name that
    nobody has, is denied from the first on."""
    file, ports, listen = write_policy(certificates), find_ports(), find_free_port()
    shown = Tls(**{key: str(certificates / name) for key, name in
                   (("cert", "web.crt"), ("key", "web.key"), ("ca", "ca.crt"))})  # fmt: skip
    text = paste(write_config(rate_policy(file), f"localhost:{ports[2]}", "x-tenant", tls=shown), listen)
    config = certificates / "envoy.yaml"
    config.write_text(text)
    server = Bursar(file, ports, certificates / "bursar.log")
    command = [str(find_envoy()), "-c", str(config), "--disable-hot-restart", "--concurrency", "1"]
    envoy = Process(command, certificates / "envoy.log")
    try:
        await asyncio.to_thread(wait_for_port, ports[2])
        await asyncio.to_thread(wait_for_port, listen)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listen}") as client:
            assert (await client.get("/")).status_code == 429
            for name in NAMES:
                got = await client.get("/", headers=[(b"x-tenant", name.encode())])
                assert got.status_code in (400, 429), name
            for name in ("t0", f"t{TENANTS - 1}"):
                assert (await client.get("/", headers={"x-tenant": name})).status_code == 200
                async with asyncio.timeout(20):  # until the assignment came over TLS
                    while (await client.get("/", headers={"x-tenant": name})).status_code == 200:
                        pass
    finally:
        envoy.stop()
        server.stop()


def test_a_server_beyond_loopback_takes_certificates(tmp_path: Path) -> None:
    policy = rate_policy(write_policy(tmp_path, 1))
    with pytest.raises(UsageError, match="pass --cert, --key and --ca"):
        make_cluster("node-a:18081")
    shown = Tls(cert="web.crt", key="web.key", ca="ca.crt")
    (cluster,) = yaml.safe_load(
        write_config(policy, "node-a:18081", "x-tenant", tls=shown).partition("clusters:\n")[2]
    )
    context = cluster["transport_socket"]["typed_config"]["common_tls_context"]
    names = context["validation_context"]["match_typed_subject_alt_names"]
    assert names == [{"san_type": "DNS", "matcher": {"exact": "node-a"}}]


def test_a_policy_without_tenants_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no tenants"):
        make_filter(rate_policy(write_policy(tmp_path, 0)), "x-tenant")


@pytest.mark.parametrize(
    ("name", "passes"),
    [("acme/red", True), ("acme/", False), ("acme", False), ("x", False), ("acme/\u00e9", False)],
)
def test_a_template_takes_whom_it_stands_for(name: str, passes: bool) -> None:
    assert bool(re.fullmatch(write_regex("acme/*"), name)) is passes


@pytest.mark.needs("envoy")
async def test_one_filter_has_templates_and_listed_tenants_and_nobody_else(tmp_path: Path) -> None:
    """Ten thousand tenants, a template, and whoever is neither: in one filter of a real Envoy."""
    file, ports, listen = write_policy(tmp_path), find_ports(), find_free_port()
    text = file.read_text().partition("tls =")[0]
    file.write_text(text.replace("[daemon]", '"acme/*" = { limit = "5/s" }\n[daemon]'))
    config = tmp_path / "envoy.yaml"
    config.write_text(paste(write_config(rate_policy(file), f"127.0.0.1:{ports[2]}", "x-tenant"), listen))
    command = [str(find_envoy()), "-c", str(config), "--disable-hot-restart", "--concurrency", "1"]
    envoy = Process(command, tmp_path / "envoy.log")
    try:
        await asyncio.to_thread(wait_for_port, listen)
        # Nobody answers Envoy: "keep" lets those through whom the filter knows.
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listen}") as client:
            assert (await client.get("/")).status_code == 429
            for name in [*NAMES, "acme/", "acme"]:
                got = await client.get("/", headers=[(b"x-tenant", name.encode())])
                passes = name == "acme/*"  # which is below acme, like any other
                assert (got.status_code == 200) is passes, name
            for name in ("t0", f"t{TENANTS - 1}", "acme/red"):
                assert (await client.get("/", headers={"x-tenant": name})).status_code == 200
    finally:
        envoy.stop()


def test_the_filter_that_asks_denies_what_is_not_answered(tmp_path: Path) -> None:
    printed = write_config(rate_policy(write_policy(tmp_path, 1)), "127.0.0.1:1", "x-tenant", asks=True)
    (found,) = yaml.safe_load(printed.partition("# into static_resources.clusters:\n")[0])
    assert found["typed_config"]["failure_mode_deny"] is True
