"""Lustre's formats as documented, and the loop against a stand-in lctl that keeps state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import lctl_standin
import pytest

from bursar.errors import BursarError, FormatError, UsageError
from bursar.integrations.lustre.enforcer import Lctl, LustreEnforcer
from bursar.integrations.lustre.formats import (
    NAME_PATTERN,
    JobStats,
    TbfRule,
    count_partitions,
    name_rule,
    parse_job_stats,
    parse_rules,
    write_change,
    write_start,
)
from bursar.runtime.world import open_world
from bursar.shares.book import TargetBook
from bursar.shares.handout import Handout, Line, TenantTerms
from bursar.shares.target import Target
from bursar.units import Rate
from bursar.world import MILLISECOND_NS

JOB_STATS = """job_stats:
- job_id:          dd.4854
  snapshot_time:   1322494602.123456789 secs.nsecs
  read_bytes:      { samples:           0, unit: bytes, min:  0, max:  0, sum:  0, sumsq: 0 }
  write_bytes:     { samples:           1, unit: bytes, min: 4096, max: 4096, sum: 4096, sumsq: 16777216 }
  setattr:         { samples:           0, unit:  usecs }
- job_id:          1234
  read_bytes:      { samples: 5, unit: bytes, min: 1, max: 9, sum: 25, sumsq: 1, hist: { 4K: 5 } }
  read:            { samples: 99, unit: usecs, min: 1, max: 9, sum: 900, sumsq: 1 }
- job_id:          "a\\x20b"
  write_bytes:     { samples: 2, unit: bytes, min: 1, max: 1, sum: 2, sumsq: 2 }
"""


def test_job_statistics_of_the_manual_are_read():
    jobs = parse_job_stats(JOB_STATS)
    assert jobs["dd.4854"] == JobStats(writes=1, written_bytes=4096)
    assert jobs["1234"] == JobStats(reads=5, read_bytes=25), "latencies are not I/O; ids may be numbers"
    assert jobs["a b"].requests == 2, "odd ids are printed quoted, with escapes"


def test_the_same_job_on_two_targets_of_an_oss_is_summed():
    assert parse_job_stats(JOB_STATS + JOB_STATS)["dd.4854"].requests == 2


@pytest.mark.parametrize(
    "bad", ["samples: many, unit: bytes, sum: 1", "samples: -1, sum: 2", "samples: 1, sum: x"]
)
def test_statistics_that_count_nothing_are_refused_with_their_line(bad):
    with pytest.raises(FormatError, match="line 2"):
        parse_job_stats(f"- job_id: a\n  write_bytes: {{ {bad} }}\n")


def test_rules_are_read_back_for_each_partition():
    text = (
        "regular_requests:\nCPT 0:\nbu_1 {dd.500} 20, ref 0\ndefault {*} 10000, ref 1\nCPT 1:\n"
        "bu_1 {dd.500} 20, ref 0\nhigh_priority_requests:\nCPT 0:\ndefault {*} 10000, ref 0\n"
    )
    rules = parse_rules(text)
    assert rules["0"] == [TbfRule("bu_1", "{dd.500}", 20), TbfRule("default", "{*}", 10000)]
    assert set(rules) == {"0", "1"} and len(rules["1"]) == 1


def test_rule_commands_keep_to_the_documented_bounds():
    assert write_start("x", "dd.500", 20) == "start x jobid={dd.500} rate=20"
    assert write_start("x", "dd.500", 20, "y") == "start x jobid={dd.500} rate=20 rank=y"
    assert write_change("x", 0) == "change x rate=1"
    assert write_change("x", 10**9) == "change x rate=999999"
    names = {name_rule(f"job.{number}") for number in range(2000)}
    assert len(names) == 2000 and all(NAME_PATTERN.fullmatch(name) for name in names)


@pytest.mark.parametrize("job", ["", "a b", "a}b", "a*", "a,b", "a&b", 'a"b', "ä", "a" * 5000])
def test_a_job_id_that_no_rule_can_name_is_refused(job):
    with pytest.raises(UsageError):
        write_start("x", job, 1)


def test_partitions_are_counted():
    assert count_partitions("0\t: 0 1\n1\t: 2 3\n") == 2
    with pytest.raises(FormatError):
        count_partitions("nothing\n")


class Oss:
    """The stand-in's state, as the test sees it."""

    def __init__(self, path):
        self.path = path
        self.write(lctl_standin.new_state())
        standin = Path(lctl_standin.__file__)
        self.lctl = Lctl([sys.executable, str(standin), str(path)])
        self.kept = path.with_name("kept")
        self.enforcer = self.live()

    def live(self):
        """One more life of bursar."""
        return LustreEnforcer(self.lctl, self.kept)

    def read(self):
        return json.loads(self.path.read_text())

    def write(self, state):
        self.path.write_text(json.dumps(state))

    def set(self, **changes):
        self.write(self.read() | changes)

    def rules(self):
        """(job id, rate) in matching order, without Lustre's default."""
        return [
            (rule["condition"], rule["rate"]) for rule in self.read()["rules"] if rule["name"] != "default"
        ]

    def try_rules(self):
        """As `rules`, while another process may be writing the file."""
        try:
            return self.rules()
        except json.JSONDecodeError:
            return []

    def try_set(self, **changes):
        try:
            self.set(**changes)
        except json.JSONDecodeError:
            return


@pytest.fixture
def oss(tmp_path):
    return Oss(tmp_path / "oss.json")


def handout(**lines):
    return Handout(1, 1, {name: Line(1, 1, 1, 1, 0, rate, weight) for name, (rate, weight) in lines.items()})


async def test_rules_start_change_rank_and_stop(oss):
    await oss.enforcer.open()
    assert oss.read()["policies"] == ["tbf jobid"]
    await oss.enforcer.apply(handout(small=(100, 1), big=(600, 5), middle=(300, 3)))
    assert oss.rules() == [("big", 300), ("middle", 150), ("small", 50)], "rate over 2 partitions, by weight"
    await oss.enforcer.apply(handout(small=(400, 1), middle=(302, 3)))
    assert oss.rules() == [("middle", 150), ("small", 200)]
    await oss.enforcer.apply(handout(small=(400, 9), middle=(302, 3)))
    assert oss.rules() == [("small", 200), ("middle", 150)]
    await oss.enforcer.release()
    assert oss.rules() == [] and oss.read()["policies"] == ["fifo"]


async def test_rates_that_hardly_change_are_not_written_again(oss):
    await oss.enforcer.open()
    await oss.enforcer.apply(handout(a=(1000, 1)))
    before = len(oss.read()["log"])
    await oss.enforcer.apply(handout(a=(1010, 1)))
    assert len(oss.read()["log"]) == before


async def test_zero_tokens_is_rate_1_never_a_stopped_rule(oss):
    await oss.enforcer.open()
    await oss.enforcer.apply(handout(a=(1, 1), b=(5000, 1)))
    assert ("a", 1) in oss.rules()


async def test_rules_of_an_earlier_life_are_stopped_and_those_of_others_stay(oss):
    state = oss.read()
    state["policies"] = ["tbf jobid"]
    state["rules"].insert(0, {"name": "bu_old", "condition": "x", "rate": 5})
    state["rules"].insert(0, {"name": "theirs", "condition": "y", "rate": 6})
    oss.write(state)
    await oss.enforcer.open()
    assert oss.rules() == [("y", 6)]
    await oss.enforcer.release()
    assert oss.read()["policies"] == ["tbf jobid"], "it was theirs before"


async def test_usage_is_the_difference_of_two_readings(oss):
    oss.set(jobs={"a": [10, 5], "b": [0, 100]})
    assert (await oss.enforcer.collect()).served == {}
    oss.set(jobs={"a": [12, 8], "b": [0, 7], "new": [3, 0]})
    seen = await oss.enforcer.collect()
    assert seen.served == {"a": 5, "new": 3}
    assert "backwards" in seen.problems[0] and "'b'" in seen.problems[0]


async def test_the_loop_shares_an_oss_and_survives_what_lctl_does_wrong(oss):
    world = await open_world("oss")
    try:
        tenants = {"a": TenantTerms(weight=1), "b": TenantTerms(weight=3)}
        book = TargetBook(tenants, Rate.of(400), 100 * MILLISECOND_NS)
        target = Target(world, "oss0", book, oss.enforcer)
        await oss.enforcer.open()
        counts = {"a": [0, 0], "b": [0, 0]}
        for step in range(8):
            counts = {job: [reads, writes + 1000] for job, (reads, writes) in counts.items()}
            oss.set(jobs=counts, fail="job_stats" if step == 4 else "change" if step == 5 else "")
            await target.step()
        assert dict(oss.rules()) == {"a": 50, "b": 150}
        assert sum(book.records().values()) == 0
        assert target.progress.skipped >= 1
        assert any("failed" in problem for problem in target.progress.problems)
        oss.set(fail="", raw="- job_id: a\n  write_bytes: { samples: x, sum: 1 }\n")
        assert await target.step() is None
        assert dict(oss.rules()) == {"a": 50, "b": 150}, "rules in force go on"
    finally:
        await world.close()


async def test_after_a_failed_change_the_rules_are_read_back_and_put_right(oss):
    await oss.enforcer.open()
    await oss.enforcer.apply(handout(a=(100, 1), b=(100, 1)))
    oss.set(rules=[rule for rule in oss.read()["rules"] if rule["condition"] != "a"])  # someone stopped it
    with pytest.raises(BursarError, match="No such file"):
        await oss.enforcer.apply(handout(a=(900, 1), b=(900, 1)))
    await oss.enforcer.apply(handout(a=(900, 1), b=(900, 1)))
    assert dict(oss.rules()) == {"a": 450, "b": 450}


async def test_a_job_that_no_rule_can_name_does_not_hold_up_the_others(oss):
    await oss.enforcer.open()
    lines = {name: Line(1, 1, 1, 1, 0, 100, 1) for name in ("a b", "c")}
    with pytest.raises(UsageError, match="a b"):
        await oss.enforcer.apply(Handout(1, 1, lines))
    assert oss.rules() == [("c", 50)]


async def test_a_missing_lctl_is_a_clear_error():
    with pytest.raises(BursarError, match="is this an OSS"):
        await Lctl(["/nowhere/lctl"]).get("x")


RUNNING = ["fifo", "crrn", "orr", "trr", "delay", "tbf", "tbf jobid", "tbf nid"]


@pytest.mark.parametrize("version", ["2.12.9", "2.15.5", "2.16.1"])
@pytest.mark.parametrize("running", RUNNING)
async def test_what_was_running_runs_again_after_a_stop_and_after_a_kill(oss, running, version):
    theirs = [{"name": "theirs", "condition": "y", "rate": 6}, *oss.read()["rules"]]
    oss.set(policies=[running], version=version, rules=theirs if running.startswith("tbf") else theirs[1:])
    before = {key: oss.read()[key] for key in ("policies", "rules")}
    for ends in ([True], [False, True]):  # stopped; killed, and the next life stopped
        for ends_well in ends:
            enforcer = oss.live()
            if running in ("fifo", "tbf", "tbf jobid"):
                await enforcer.open()
                await enforcer.apply(handout(a=(100, 1)))
                assert ("a", 50) in oss.rules()
            else:
                with pytest.raises(UsageError, match=f"schedules by '{running}'"):
                    await enforcer.open()
            if ends_well:
                await enforcer.release()
        assert {key: oss.read()[key] for key in before} == before


async def test_a_policy_that_somebody_chose_meanwhile_stays(oss):
    await oss.enforcer.open()
    oss.set(policies=["tbf"])
    await oss.enforcer.release()
    assert oss.read()["policies"] == ["tbf"]


@pytest.mark.parametrize(("version", "most"), [("2.12.9", 65_534), ("2.14.0", 65_534), ("2.15.0", 999_999)])
async def test_rates_stay_below_what_the_release_takes(oss, version, most):
    oss.set(version=version)
    await oss.enforcer.open()
    await oss.enforcer.apply(handout(a=(10_000_000, 1)))
    assert oss.rules() == [("a", most)]


def test_a_daemon_shares_an_oss_until_it_is_told_to_end(tmp_path, monkeypatch):
    """`bursar serve` against the stand-in: rules appear, and are gone when it ends."""
    oss = Oss(tmp_path / "oss.json")
    lctl = tmp_path / "lctl"
    lctl.write_text(f'#!/bin/sh\nexec {sys.executable} {lctl_standin.__file__} {oss.path} "$@"\n')
    lctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    policy = tmp_path / "policy.toml"
    policy.write_text(
        f'[daemon]\nlisten = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\nstate = "{tmp_path}/state"\n'
        '[resource.oss]\nkind = "share"\nenforce = "lustre"\ncapacity = "400/s"\ninterval = "200ms"\n'
        "[resource.oss.tenant]\na = {}\nb = { weight = 3 }\n"
    )
    command = [sys.executable, "-m", "bursar", "serve", str(policy)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        served = 0
        while not oss.try_rules() and time.monotonic() < until:
            served += 1000
            oss.try_set(jobs={"a": [0, served], "b": [served, 0]})
            time.sleep(0.3)
        assert sorted(job for job, _ in oss.try_rules()) == ["a", "b"]
    finally:
        process.terminate()
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said
    assert oss.rules() == [] and oss.read()["policies"] == ["fifo"]
