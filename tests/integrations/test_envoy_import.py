"""The YAML of envoyproxy/ratelimit, as a policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from bursar.errors import UsageError
from bursar.fleet.changes import compare
from bursar.integrations.envoy.importing import import_file
from bursar.policy import parse
from bursar.policy.descriptors import Descriptors

NESTED = """
domain: edge
descriptors:
  - key: tenant
    rate_limit: {unit: second, requests_per_unit: 5}
  - key: path
    value: /login
    rate_limit: {unit: minute, requests_per_unit: 3}
    descriptors:
      - key: remote_address
        rate_limit: {unit: minute, requests_per_unit: 2}
  - key: path
    value: /v1/*
    rate_limit: {unit: hour, requests_per_unit: 100}
    shadow_mode: true
  - key: path
    value: /v1/all/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 100}
  - key: staff
    rate_limit: {unlimited: true}
"""


def read(folder: Path, text: str) -> str:
    file = folder / "ratelimit.yaml"
    file.write_text(text)
    return import_file(file)


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([("tenant", "acme")], [("per-second", "r1/acme")]),
        ([("path", "/login")], [("per-minute", "r2")]),
        ([("path", "/login"), ("remote_address", "::1")], [("per-minute", "r3/::1")]),
        ([("path", "/v1/x")], [("per-hour-shadow", "r4//v1/x")]),
        ([("path", "/v1/all/x")], [("per-hour-shadow", "r4//v1/all/x"), ("per-hour", "r5")]),
        ([("staff", "me")], [("per-second", "r6/me")]),
        ([("path", "/x")], []),
        ([("remote_address", "::1"), ("path", "/login")], []),
    ],
)
def test_rules_are_matched_as_they_were(
    entries: list[tuple[str, str]], found: list[tuple[str, str]], tmp_path: Path
) -> None:
    policy = parse(read(tmp_path, NESTED))
    assert sorted(Descriptors(policy).find("edge", entries)) == sorted(found)
    for resource, tenant in found:
        assert policy.resource(resource).find(tenant) is not None
    assert policy.resource("per-hour-shadow").shadow


def test_thirty_rules_are_thirty_limits(tmp_path: Path) -> None:
    rules = "".join(
        f"  - {{key: path, value: /{n}, rate_limit: {{unit: second, requests_per_unit: {n + 1}}}}}\n"
        for n in range(30)
    )
    policy = parse(read(tmp_path, f"domain: edge\ndescriptors:\n{rules}"))
    limits = [tenant.limit.per_second for tenant in policy.resource("per-second").tenants.values()]
    assert limits == list(range(1, 31))
    assert Descriptors(policy).find("edge", [("path", "/7")]) == [("per-second", "r8")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1", 'has no "domain"'),
        ("domain: edge", "no rule with a rate_limit"),
        ("domain: edge\ndescriptors:\n- {value: 1}", 'without a "key"'),
        ("domain: edge\ndescriptors:\n- {key: a, rate_limit: {unit: month, requests_per_unit: 1}}", "month"),
        ("domain: edge\ndescriptors:\n- {key: a, rate_limit: {unit: day, replaces: [b]}}", "replaces"),
        ("[", "cannot be read"),
    ],
)
def test_what_cannot_be_said_in_a_policy_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        read(tmp_path, text)


def test_rules_that_change_are_changes_of_the_policy(tmp_path: Path) -> None:
    before, after = parse(read(tmp_path, NESTED)), parse(read(tmp_path, NESTED.replace("/login", "/in")))
    assert [change.key for change in compare(before, after)] == ["descriptor.r2.match", "descriptor.r3.match"]
