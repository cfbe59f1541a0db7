"""The kernel's I/O controller: its formats, and the real one where it can be had."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bursar.errors import BursarError, FormatError, UsageError
from bursar.integrations.blkio.enforcer import QUIET_INTERVALS, GroupEnforcer
from bursar.integrations.blkio.groups import (
    BlkioV1,
    Bytes,
    GroupMissingError,
    IoV2,
    find_controller,
    find_device,
    parse_v1,
    parse_v2,
)
from bursar.runtime.world import open_world
from bursar.shares.book import TargetBook
from bursar.shares.handout import Handout, Line, TenantTerms
from bursar.shares.target import Target
from bursar.units import Rate
from bursar.world import MILLISECOND_NS
from bursar_lab.experiments.shares import kernel as experiment

MIB = 1024 * 1024


def reason_not_to_run():
    """Why the real controller cannot be had here, or None."""
    if os.geteuid() != 0:
        return "blkio: cgroups can be made by root only"
    try:
        controller = find_controller()
    except UsageError as error:
        return f"blkio: {error}"
    try:
        with experiment.make_groups(controller):
            pass
    except OSError as error:
        return f"blkio: cgroups cannot be made below {controller.root}: {error.strerror}"
    return None


needs_controller = pytest.mark.skipif(reason_not_to_run() is not None, reason=str(reason_not_to_run()))

V1_TEXT = """8:16 Read 4096
8:16 Write 8192
8:16 Sync 12288
8:16 Total 12288
254:0 Read 1
Total 12289
"""


def test_version_1_statistics_are_read_for_the_device_asked_for():
    assert parse_v1(V1_TEXT, "8:16") == Bytes(4096, 8192)
    assert parse_v1(V1_TEXT, "254:0") == Bytes(1, 0)
    assert parse_v1("Total 0\n", "8:16") == Bytes(0, 0)


def test_version_2_statistics_are_read_for_the_device_asked_for():
    text = "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n8:16 rbytes=70 wbytes=80\n"
    assert parse_v2(text, "8:16") == Bytes(70, 80)
    assert parse_v2(text, "8:32") == Bytes(0, 0)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_v1, "8:16 Read -5\n"),
        (parse_v1, "8:16 Write many\n"),
        (parse_v2, "8:16 rbytes=1.5 wbytes=2\n"),
        (parse_v2, "8:16 rbytes=99999999999999999999999\n"),
    ],
)
def test_counts_that_are_none_are_refused_with_the_line(parse, text):
    with pytest.raises(FormatError, match="8:16"):
        parse(text, "8:16")


class Folder:
    """A cgroup as a folder of plain files, for what the kernel would not do on request."""

    def __init__(self, root, version=1):
        self.controller = BlkioV1(root) if version == 1 else IoV2(root)
        self.root = root

    def add(self, group, read=0, written=0):
        (self.root / group).mkdir(exist_ok=True)
        names = ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device", "io.max"]
        for name in names:
            (self.root / group / name).touch()
        self.set(group, read, written)

    def set(self, group, read, written=0):
        v1 = f"8:16 Read {read}\n8:16 Write {written}\n"
        (self.root / group / "blkio.throttle.io_service_bytes").write_text(v1)
        (self.root / group / "io.stat").write_text(f"8:16 rbytes={read} wbytes={written}\n")

    def limits(self, group, name="blkio.throttle.read_bps_device"):
        return (self.root / group / name).read_text()


def handout(**rates):
    return Handout(1, 1, {name: Line(1, 1, 1, 1, 0, rate, 1) for name, rate in rates.items()})


async def test_usage_is_the_difference_and_the_first_reading_is_where_it_begins(tmp_path):
    folder = Folder(tmp_path)
    folder.add("a", 100, 50)
    enforcer = GroupEnforcer(folder.controller, "8:16", {"a": "a"})
    assert (await enforcer.collect()).served == {}
    folder.set("a", 400, 60)
    assert (await enforcer.collect()).served == {"a": 310}


async def test_a_counter_that_went_backwards_is_named_and_left_out(tmp_path):
    folder = Folder(tmp_path)
    folder.add("a", 100)
    folder.add("b", 100)
    enforcer = GroupEnforcer(folder.controller, "8:16", {"a": "a", "b": "b"})
    await enforcer.collect()
    folder.set("a", 50)
    folder.set("b", 150)
    seen = await enforcer.collect()
    assert seen.served == {"b": 50}
    assert "backwards" in seen.problems[0] and "'a'" in seen.problems[0]
    folder.set("a", 60)
    assert (await enforcer.collect()).served == {"a": 10}


async def test_a_vanished_group_is_named_and_the_others_go_on(tmp_path):
    folder = Folder(tmp_path)
    folder.add("a")
    folder.add("b")
    world = await open_world("blkio")
    try:
        book = TargetBook({"a": TenantTerms(), "b": TenantTerms()}, Rate.of(100), 10 * MILLISECOND_NS)
        target = Target(world, "8:16", book, GroupEnforcer(folder.controller, "8:16", {"a": "a", "b": "b"}))
        await target.step()
        for file in (tmp_path / "a").iterdir():
            file.unlink()
        (tmp_path / "a").rmdir()
        folder.set("b", 5000)
        handed = await target.step()
        assert set(handed.lines) == {"b"} and handed.lines["b"].final == handed.tokens
        assert any("gone" in problem for problem in target.progress.problems)
        assert target.progress.skipped == 0
    finally:
        await world.close()


async def test_limits_follow_the_direction_of_the_io_and_are_written_only_when_they_change(tmp_path):
    folder = Folder(tmp_path)
    folder.add("a")
    enforcer = GroupEnforcer(folder.controller, "8:16", {"a": "a"})
    await enforcer.collect()
    folder.set("a", 300, 100)
    await enforcer.collect()
    await enforcer.apply(handout(a=100 * MIB))
    assert folder.limits("a") == f"8:16 {75 * MIB}"
    assert folder.limits("a", "blkio.throttle.write_bps_device") == f"8:16 {25 * MIB}"
    (tmp_path / "a" / "blkio.throttle.read_bps_device").write_text("untouched")
    await enforcer.apply(handout(a=101 * MIB))
    assert folder.limits("a") == "untouched"
    await enforcer.apply(handout(a=150 * MIB))
    assert folder.limits("a") != "untouched"


async def test_a_quiet_tenants_limit_is_lifted_after_a_while_and_never_set_to_nothing(tmp_path):
    folder = Folder(tmp_path, version=2)
    folder.add("a")
    enforcer = GroupEnforcer(folder.controller, "8:16", {"a": "a"})
    await enforcer.apply(handout(a=1))
    assert folder.limits("a", "io.max") == f"8:16 rbps={MIB} wbps={MIB}"
    for _ in range(QUIET_INTERVALS - 1):
        await enforcer.apply(handout())
    assert "max" not in folder.limits("a", "io.max")
    await enforcer.apply(handout())
    assert folder.limits("a", "io.max").startswith("8:16 rbps=max wbps=max")


async def test_a_group_whose_controller_is_off_is_an_error_with_a_remedy(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / "a").mkdir()
    enforcer = GroupEnforcer(folder.controller, "8:16", {"a": "a"})
    assert "not enabled" in (await enforcer.collect()).problems[0]
    with pytest.raises(BursarError, match="not enabled"):
        await enforcer.apply(handout(a=1))


def test_a_missing_device_or_controller_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(UsageError, match="lsblk"):
        find_device("250:99999")
    with pytest.raises(UsageError, match="No such file"):
        find_device("/nowhere/at/all")
    with pytest.raises(UsageError, match="mount"):
        find_controller(tmp_path)
    with pytest.raises(GroupMissingError):
        BlkioV1(tmp_path).read("gone", "8:16")


def test_a_version_2_tree_is_found_by_its_controllers(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpu io memory\n")
    assert find_controller(tmp_path).version == 2


@needs_controller
def test_a_device_that_does_not_exist_is_refused_by_the_kernel_with_a_clear_error():
    controller = find_controller()
    with experiment.make_groups(controller) as groups, pytest.raises(BursarError, match="device"):
        controller.limit(groups["a"], "250:77", 1, 1)


@needs_controller
@pytest.mark.needs("fio")
def test_two_groups_share_by_weight_one_alone_gets_all_and_a_kill_leaves_no_limit():
    """The real thing: fio with direct I/O, real cgroups, bursar killed with SIGKILL."""
    found = experiment.measure(quick=True)
    print(found)
    assert found["ratio"] == pytest.approx(3, rel=0.2)
    assert found["alone_part"] > 0.85
    assert found["takeover_intervals"] is not None and found["takeover_intervals"] <= 5
    assert found["limits_before_kill"] > 0 and found["lifted_after_s"] is not None


@pytest.fixture
def running(tmp_path):
    """bursar over two idle groups with limits of an earlier life in one of them."""
    controller = find_controller()
    device = find_device(str(tmp_path))
    with experiment.make_groups(controller) as groups:
        controller.limit(groups["a"], device, 12345678, 12345678)
        process = experiment.start_bursar(tmp_path, device, groups)
        yield controller, groups, process
        if process.poll() is None:
            process.kill()
        process.wait()


@needs_controller
def test_a_start_lifts_what_an_earlier_life_left_behind(running):
    controller, groups, _ = running
    assert experiment.limits_of(controller, groups) == []


@needs_controller
def test_a_proper_end_lifts_the_limits_and_dismisses_the_guard(running):
    controller, groups, process = running
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 0
    assert experiment.limits_of(controller, groups) == []


@needs_controller
def test_a_guard_lifts_limits_even_when_it_was_replaced(tmp_path):
    """The guard is killed first, bursar posts another, then bursar is killed."""
    controller = find_controller()
    device = find_device(str(tmp_path))
    script = (
        "import asyncio, sys, time\n"
        "from bursar.integrations.blkio.enforcer import GroupEnforcer\n"
        "from bursar.integrations.blkio.groups import find_controller\n"
        "from bursar.integrations.blkio.guard import Guard\n"
        "from bursar.shares.handout import Handout, Line\n"
        "import os, signal\n"
        "group, device = sys.argv[1:]\n"
        "controller = find_controller()\n"
        "guard = Guard(controller, device, [group])\n"
        "enforcer = GroupEnforcer(controller, device, {'a': group}, guard)\n"
        "handout = Handout(1, 1, {'a': Line(1, 1, 1, 1, 0, 5 << 20, 1)})\n"
        "asyncio.run(enforcer.apply(handout))\n"
        "os.kill(guard.pid, signal.SIGKILL); os.waitpid(guard.pid, 0)\n"
        "guard._process.returncode = -9\n"
        "asyncio.run(enforcer.apply(handout))\n"
        "print('limited', flush=True); time.sleep(60)\n"
    )
    with experiment.make_groups(controller) as groups:
        process = subprocess.Popen(
            [sys.executable, "-c", script, groups["a"], device], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "limited\n"
        assert experiment.limits_of(controller, groups)
        process.kill()
        process.wait()
        until = time.monotonic() + 10
        while experiment.limits_of(controller, groups) and time.monotonic() < until:
            time.sleep(0.02)
        assert experiment.limits_of(controller, groups) == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"device": "250:9999", "tenants": {"a": {"path": "a"}}}, "block device"),
        ({"device": "/", "tenants": {}}, "tenants"),
        ({"device": "/", "tenants": {"a": {"path": "../../x"}}}, "path below"),
        ({"device": "/", "tenants": {"a": {"path": "a", "wight": 2}}}, "wight"),
    ],
)
@needs_controller
def test_a_wrong_configuration_ends_with_a_message_not_a_traceback(tmp_path, config, words):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "bursar.integrations.blkio", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr


def test_nothing_of_these_tests_stays_behind():
    try:
        root = find_controller().root
    except UsageError:
        pytest.skip("blkio: no controller here")
    assert list(Path(root).glob(f"bursar-{os.getpid()}-*")) == []
