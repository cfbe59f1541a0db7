"""What a policy file says, once read."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import msgspec
import pytest

from bursar.errors import PolicyError, UsageError
from bursar.policy import (
    ClaimPolicy,
    Policy,
    PoolPolicy,
    QuotaPolicy,
    RatePolicy,
    SharePolicy,
    load,
    parse,
)
from bursar.units import SECOND_NS, Rate

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy.toml"

RATE = """
[resource.cache]
kind = "rate"
{keys}
servers = {{ a = "100k/s", b = "auto", c = {{ backend = "memcached://127.0.0.1:11211" }} }}
[resource.cache.tenant]
acme = {{ reservation = "30k/s", limit = "60k/s", weight = 2, servers = ["a", "b"] }}
globex = {{}}
"""


def read_rate_policy(keys: str = "") -> RatePolicy:
    found = parse(RATE.format(keys=keys)).resource("cache")
    assert isinstance(found, RatePolicy)
    return found


def test_the_example_has_one_resource_of_each_kind() -> None:
    kinds = {name: type(resource) for name, resource in load(EXAMPLE).resources.items()}
    assert kinds == {
        "cache": RatePolicy,
        "ost0": SharePolicy,
        "records": PoolPolicy,
        "llm": QuotaPolicy,
        "datacentre": ClaimPolicy,
    }


def test_a_rate_has_these_defaults() -> None:
    cache = read_rate_policy()
    assert (cache.period_ns, cache.interval_ns, cache.drift_ppm) == (SECOND_NS, SECOND_NS // 5, 1000)
    assert cache.pacing and not cache.shadow and not cache.adaptive_interval
    assert cache.without_bursar.mode == "keep"
    assert cache.tenants["globex"].reservation == Rate(0)
    assert cache.tenants["globex"].limit is None
    assert cache.tenants["globex"].weight == 1
    assert cache.tenants["globex"].servers is None


def test_a_rate_says_what_was_written() -> None:
    cache = read_rate_policy('period = "5s"\npacing = false\nwithout_bursar = { safe = "1k/s" }')
    assert cache.interval_ns == SECOND_NS
    assert not cache.pacing
    assert cache.without_bursar.mode == "safe"
    assert cache.without_bursar.rate == Rate(1000)
    assert cache.servers["a"].capacity == Rate(100_000)
    assert cache.servers["b"].capacity is None
    assert cache.servers["c"].backend == "memcached://127.0.0.1:11211"
    acme = cache.tenant("acme")
    assert acme.reservation.per(cache.period_ns) == 150_000
    assert (acme.weight, acme.servers) == (2, ("a", "b"))


def test_an_automatic_interval_begins_at_a_fifth_of_the_period() -> None:
    cache = read_rate_policy('period = "10s"\ninterval = "auto"')
    assert cache.adaptive_interval
    assert cache.interval_ns == 2 * SECOND_NS


@pytest.mark.parametrize(
    ("keys", "costs"),
    [
        ("", "requests"),
        ('capacity = "auto"', "requests"),
        ('capacity = "100/s"', "requests"),
        ('capacity = "1GiB/s"', "bytes"),
        ('costs = "bytes"', "bytes"),
    ],
)
def test_a_share_costs_what_its_capacity_counts(keys: str, costs: str) -> None:
    share = parse(f"[resource.ost0]\nkind = 'share'\n{keys}\ntenant = {{ a = {{}} }}").resource("ost0")
    assert isinstance(share, SharePolicy)
    assert share.costs == costs
    assert share.interval_ns == SECOND_NS // 10
    assert share.half_life_ns is None


def test_a_pool_takes_batches_of_a_thousand_that_adapt() -> None:
    text = "[resource.r]\nkind = 'pool'\n{}\ntenant = {{ a = {{ reservation = '1k/s' }} }}"
    pool, fixed = parse(text.format("")).resource("r"), parse(text.format("batch = 50")).resource("r")
    assert isinstance(pool, PoolPolicy) and isinstance(fixed, PoolPolicy)
    assert (pool.batch, pool.adaptive_batch, pool.capacity, pool.words) == (1000, True, None, "shm://")
    assert (fixed.batch, fixed.adaptive_batch) == (50, False)


def test_a_nested_tenant_knows_its_parent() -> None:
    llm = load(EXAMPLE).resource("llm")
    assert isinstance(llm, QuotaPolicy)
    assert llm.tenants["acme/search"].parent == "acme"
    assert llm.tenants["acme"].parent is None
    assert llm.tenants["acme/search"].limit == 1_000_000
    assert (llm.warnings, llm.hold_expiry_ns, llm.block) == ((80, 95, 100), 300 * SECOND_NS, 10_000)


def test_a_quota_in_bytes_takes_sizes() -> None:
    text = '[resource.d]\nkind = "quota"\nunit = "bytes"\nwarnings = []\ntenant = { a = { limit = "10GiB" } }'
    found = parse(text).resource("d")
    assert isinstance(found, QuotaPolicy)
    assert (found.tenants["a"].limit, found.warnings) == (10 * 2**30, ())


def test_a_quota_refuses_without_bursar() -> None:
    policy = parse('[resource.llm]\nkind = "quota"\ntenant = { acme = { limit = 5 } }')
    assert policy.resource("llm").without_bursar.mode == "refuse"
    assert QuotaPolicy(name="llm", tenants={}).without_bursar.mode == "refuse"


def test_a_claim_refuses_without_bursar_and_needs_no_tenants() -> None:
    claim = parse('[resource.x]\nkind = "claim"').resource("x")
    assert isinstance(claim, ClaimPolicy)
    assert claim.without_bursar.mode == "refuse"
    assert (claim.paths, claim.dead_holder, claim.tenants) == (False, "auto", {})


def test_a_daemon_listens_on_loopback_unless_told() -> None:
    daemon = parse('[resource.x]\nkind = "claim"').daemon
    assert (daemon.listen, daemon.http) == ("127.0.0.1:7070", "127.0.0.1:9464")
    assert daemon.tls is None and daemon.token_file is None and daemon.peers == {}


def test_beyond_loopback_takes_tls() -> None:
    text = """
    store = "zookeeper://a:2181,b:2181/bursar"
    [daemon]
    listen = "[::]:7070"
    http = "off"
    tls = { cert = "n.crt", key = "n.key", ca = "ca.crt" }
    peers = { b = "b.example:7070", c = "[2001:db8::1]:7070" }
    [resource.x]
    kind = "claim"
    """
    daemon = parse(text).daemon
    assert daemon.http is None
    assert daemon.tls is not None and daemon.tls.ca == "ca.crt"
    with pytest.raises(PolicyError) as caught:
        parse(text.replace("tls =", "# tls ="))
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"daemon.listen", "daemon.peers.b", "daemon.peers.c"}


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1"])
def test_loopback_needs_no_tls(address: str) -> None:
    assert parse(f'daemon = {{ listen = "{address}" }}\nresource.x.kind = "claim"').daemon.listen == address


def test_http_beyond_loopback_takes_tls_too() -> None:
    with pytest.raises(PolicyError, match=r"daemon\.http.*beyond loopback"):
        parse('daemon = { http = "0.0.0.0:9464" }\nresource.x.kind = "claim"')
    tls = 'tls = { cert = "n.crt", key = "n.key", ca = "ca.crt" }'
    settings = f'http = "0.0.0.0:9464", metrics_tenants = 5, metrics_token_file = "m.token", {tls}'
    daemon = parse(f'daemon = {{ {settings} }}\nresource.x.kind = "claim"').daemon
    assert daemon.http == "0.0.0.0:9464"
    assert (daemon.metrics_tenants, daemon.metrics_token_file) == (5, "m.token")
    assert parse('resource.x.kind = "claim"').daemon.metrics_tenants == 1000


@pytest.mark.parametrize("url", ["https://example.com/a?b=c", "http://127.0.0.1:9/x", "http://[::1]/"])
def test_alerts_go_out_encrypted_or_stay_on_this_machine(url: str) -> None:
    alert = parse(f'alert.url = "{url}"\nresource.x.kind = "claim"').alert
    assert alert is not None and alert.url == url
    assert parse('resource.x.kind = "claim"').alert is None


def test_alerts_go_in_clear_only_where_the_policy_says_so() -> None:
    text = 'alert = { url = "http://example.com" }\nresource.x.kind = "claim"'
    with pytest.raises(PolicyError, match="sent in clear"):
        parse(text)
    alert = parse(text.replace(" }", ", allow_http = true }")).alert
    assert alert is not None and alert.allow_http


@pytest.mark.parametrize(
    "url", ["ftp://a/b", "https://", "https://me:secret@a/", "https://a b/", "https://a:99999/"]
)
def test_an_address_for_alerts_is_one(url: str) -> None:
    with pytest.raises(PolicyError, match=r"alert\.url"):
        parse(f'alert.url = "{url}"\nresource.x.kind = "claim"')


def test_a_policy_does_not_change() -> None:
    policy = load(EXAMPLE)
    with pytest.raises(AttributeError):
        policy.store = "memory://"  # type: ignore[misc]
    for change in (
        lambda table: table.update(x=1),
        lambda table: table.pop("cache"),
        lambda table: table.clear(),
        lambda table: table.__setitem__("x", 1),
        lambda table: table.__ior__({}),
    ):
        with pytest.raises(TypeError):
            change(policy.resources)
    assert len(policy.resources) == 5


def test_a_policy_travels_unchanged() -> None:
    policy = load(EXAMPLE)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policy), type=Policy) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert copy.deepcopy(policy) == policy


def test_a_name_that_is_not_there_is_answered_with_the_nearest() -> None:
    policy = load(EXAMPLE)
    with pytest.raises(UsageError, match=r'no resource "cahce" in .*; did you mean "cache"\?'):
        policy.resource("cahce")
    with pytest.raises(UsageError, match=r'no tenant "acne" .*did you mean "acme"'):
        policy.resource("cache").tenant("acne")
    with pytest.raises(UsageError, match="there is cache, ost0"):
        policy.resource("zzz")
