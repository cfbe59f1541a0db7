"""The kernel's I/O controller: its formats, and the real one where it can be had."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import bursar
import bursar.sync
from bursar.errors import BursarError, FormatError, UsageError
from bursar.integrations.blkio.discovery import Discovery
from bursar.integrations.blkio.enforcer import QUIET_INTERVALS, GroupEnforcer
from bursar.integrations.blkio.found import FoundLimits
from bursar.integrations.blkio.groups import (
    BlkioV1,
    Counts,
    GroupMissingError,
    IoV2,
    Limits,
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
    assert parse_v1(V1_TEXT, "8:16") == Counts(4096, 8192)
    assert parse_v1(V1_TEXT, "254:0") == Counts(1, 0)
    assert parse_v1("Total 0\n", "8:16") == Counts(0, 0)


def test_version_2_statistics_are_read_for_the_device_asked_for():
    text = "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n8:16 rbytes=70 wbytes=80\n"
    assert parse_v2(text, "8:16") == Counts(70, 80)
    assert parse_v2(text, "8:32") == Counts(0, 0)


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


def enforce(folder, *names):
    """An enforcer of groups that are listed; what it finds is written down beside them."""
    found = FoundLimits(folder.root / "found.json", "8:16")
    return GroupEnforcer(folder.controller, "8:16", lambda: {name: name for name in names}, found)


def handout(**rates):
    return Handout(1, 1, {name: Line(1, 1, 1, 1, 0, rate, 1) for name, rate in rates.items()})


async def test_usage_is_the_difference_and_the_first_reading_is_where_it_begins(tmp_path):
    folder = Folder(tmp_path)
    folder.add("a", 100, 50)
    enforcer = enforce(folder, "a")
    assert (await enforcer.collect()).served == {}
    folder.set("a", 400, 60)
    assert (await enforcer.collect()).served == {"a": 310}


async def test_a_counter_that_went_backwards_is_named_and_left_out(tmp_path):
    folder = Folder(tmp_path)
    folder.add("a", 100)
    folder.add("b", 100)
    enforcer = enforce(folder, "a", "b")
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
        target = Target(world, "8:16", book, enforce(folder, "a", "b"))
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
    enforcer = enforce(folder, "a")
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
    enforcer = enforce(folder, "a")
    await enforcer.collect()
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
    enforcer = enforce(folder, "a")
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
        controller.limit(groups["a"], "250:77", Limits(1, 1))


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


FOUND = Limits(read=123 * MIB, write=None)


@pytest.fixture
def running(tmp_path):
    """`bursar serve` over two groups, one of which others have limited, with both busy."""
    controller, device = find_controller(), find_device(str(tmp_path))
    with experiment.make_groups(controller) as groups:
        controller.limit(groups["a"], device, FOUND)
        experiment.write_file(tmp_path / "a.data")
        process = experiment.start_bursar(tmp_path, device, groups)
        fio = experiment.start_fio(tmp_path, "a", controller.root / groups["a"], 30)
        try:
            until = time.monotonic() + 20
            while controller.limits(groups["a"], device) == FOUND and time.monotonic() < until:
                time.sleep(0.05)
            assert controller.limits(groups["a"], device).read < FOUND.read
            yield controller, groups["a"], device, process
        finally:
            process.kill()
            fio.terminate()  # killed, it would leave its jobs behind
            for each in (process, fio):
                each.wait()
            process.stderr.close()


@needs_controller
@pytest.mark.needs("fio")
def test_served_by_a_daemon_a_disk_has_a_why_and_statistics_and_gives_limits_back(running, tmp_path):
    controller, group, device, process = running
    with bursar.sync.connect((tmp_path / "url").read_text()) as b:
        assert any("it gets" in said for said in b.explain("disk", group).sentences)
        assert b.statistics("disk").part["tenants"][group]["rate"] > 0
        with pytest.raises(bursar.Refused, match="enforced by"), b.resource("disk").acquire(group):
            pass
    process.terminate()
    assert process.wait(timeout=20) == 0
    assert controller.limits(group, device) == FOUND


@needs_controller
@pytest.mark.needs("fio")
def test_a_daemon_that_is_killed_leaves_the_limits_that_were_there_before(running):
    controller, group, device, process = running
    process.kill()
    until = time.monotonic() + 20
    while controller.limits(group, device) != FOUND and time.monotonic() < until:
        time.sleep(0.02)
    assert controller.limits(group, device) == FOUND


def test_limits_that_both_bursar_and_its_guard_left_behind_are_given_back_by_the_next_start(tmp_path):
    folder = Folder(tmp_path)
    folder.add("a")
    folder.controller.limit("a", "8:16", FOUND)
    found = FoundLimits(tmp_path / "found.json", "8:16")
    assert found.note(folder.controller, "a") == FOUND
    folder.controller.limit("a", "8:16", Limits(1, 1))
    FoundLimits(tmp_path / "found.json", "8:16").give_all_back(folder.controller)
    assert folder.controller.limits("a", "8:16").read == FOUND.read


async def test_a_limit_that_others_set_holds_as_well(tmp_path):
    folder = Folder(tmp_path, version=2)
    folder.add("a")
    (tmp_path / "a" / "io.max").write_text(f"8:16 rbps={2 * MIB} wbps=max riops=7 wiops=max\n")
    enforcer = enforce(folder, "a")
    await enforcer.collect()
    await enforcer.apply(handout(a=100 * MIB))
    assert folder.limits("a", "io.max") == f"8:16 rbps={2 * MIB} wbps={50 * MIB}"
    await enforcer.release()
    assert folder.limits("a", "io.max") == f"8:16 rbps={2 * MIB} wbps=max"


async def test_requests_are_counted_and_limited_where_a_token_is_one(tmp_path):
    folder = Folder(tmp_path, version=2)
    folder.add("a")
    folder.controller = IoV2(tmp_path, "requests")
    (tmp_path / "a" / "io.stat").write_text("8:16 rbytes=4096 wbytes=0 rios=1 wios=0\n")
    enforcer = enforce(folder, "a")
    await enforcer.collect()
    (tmp_path / "a" / "io.stat").write_text("8:16 rbytes=8192 wbytes=0 rios=31 wios=10\n")
    assert (await enforcer.collect()).served == {"a": 40}
    await enforcer.apply(handout(a=4000))
    assert folder.limits("a", "io.max") == "8:16 riops=3000 wiops=1000"


@pytest.mark.parametrize("version", [1, 2])
async def test_groups_of_a_template_are_found_while_they_are_there(tmp_path, version):
    folder = Folder(tmp_path, version)
    (tmp_path / "docker" / "x" / "inner").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    discovery = Discovery(folder.controller, ["batch"], ["docker/*"])
    inside = ["docker/x/inner"] if version == 1 else []
    assert list(discovery.look()) == ["batch", "docker/x", *inside]
    (tmp_path / "docker" / "y").mkdir()
    (tmp_path / "docker" / "x" / "inner").rmdir()
    (tmp_path / "docker" / "x").rmdir()
    assert list(discovery.look()) == ["batch", "docker/y"]


def test_a_tenant_that_is_no_path_of_a_group_is_refused(tmp_path):
    for wrong in ("../x", "/x", "a/../../x"):
        with pytest.raises(UsageError, match="path of a control group"):
            Discovery(BlkioV1(tmp_path), [wrong], [])


def test_nothing_of_these_tests_stays_behind():
    try:
        root = find_controller().root
    except UsageError:
        pytest.skip("blkio: no controller here")
    assert list(Path(root).glob(f"bursar-{os.getpid()}-*")) == []
