"""Two groups of real processes on a real disk, shared through the kernel's I/O controller."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError, UsageError
from bursar.integrations.blkio.groups import Controller, find_controller, find_device

MIB = 1024 * 1024
CAPACITY_BYTES = 80 * MIB
INTERVAL_MS = 100
FILE_MIB = 128
WEIGHTS = {"a": 1, "b": 3}
SETTLE_S = 1.0
"""From the first I/O of both groups until shares are measured."""
START_S = 30
"""fio lays out nothing, but starts slowly on a busy machine."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Bytes of each group, read at moments `INTERVAL_MS` apart."""

    at_s: list[float]
    counts: dict[str, list[int]]

    def rate(self, group: str, first_s: float, last_s: float) -> float:
        """Bytes a second between two moments."""
        inside = [k for k, at in enumerate(self.at_s) if first_s <= at <= last_s]
        if len(inside) < 2:
            raise BursarError(f"no readings between {first_s} and {last_s} s: the machine is too busy")
        span = self.at_s[inside[-1]] - self.at_s[inside[0]]
        return (self.counts[group][inside[-1]] - self.counts[group][inside[0]]) / span


@contextmanager
def make_groups(controller: Controller) -> Iterator[dict[str, str]]:
    """Two cgroups of our own, removed afterwards."""
    groups = {name: f"bursar-{os.getpid()}-{name}" for name in WEIGHTS}
    for path in groups.values():
        (controller.root / path).mkdir()
    try:
        yield groups
    finally:
        for path in groups.values():
            _remove_group(controller.root / path)


def _remove_group(folder: Path) -> None:
    """A group can be removed once its last process is reaped."""
    for _ in range(100):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.05)
    folder.rmdir()


def start_fio(
    folder: Path, name: str, group: Path, seconds: float, *, depth: int = 16, rate: int | None = None
) -> subprocess.Popen[bytes]:
    """Direct reads of one file, from within a cgroup; `rate` bytes a second, or all it can get."""
    fio = shutil.which("fio")
    if fio is None:
        raise UsageError("fio is not installed; install it, or leave out this experiment")
    command = (
        f"echo $$ > {group}/cgroup.procs && exec {fio} --name={name} --filename={folder}/{name}.data "
        f"--size={FILE_MIB}m --rw=read --direct=1 --bs=128k --iodepth={depth} --ioengine=libaio "
        f"{f'--rate={rate} ' if rate else ''}--time_based --runtime={seconds:g} --output=/dev/null"
    )
    return subprocess.Popen(["/bin/sh", "-c", command])


def start_bursar(
    folder: Path,
    device: str,
    groups: dict[str, str],
    weights: dict[str, int] = WEIGHTS,
    capacity_bytes: int | None = CAPACITY_BYTES,
) -> subprocess.Popen[str]:
    capacity = "auto" if capacity_bytes is None else f"{capacity_bytes}B/s"
    tenants = "".join(f'"{path}" = {{ weight = {weights[name]} }}\n' for name, path in groups.items())
    version, port = find_controller().version, find_free_port()
    path = folder / "policy.toml"
    path.write_text(
        f'[daemon]\nname = "blkio"\nlisten = "127.0.0.1:{port}"\nhttp = "127.0.0.1:0"\n'
        f'state = "{folder}/state"\n[resource.disk]\n'
        f'kind = "share"\nenforce = "{"blkio" if version == 1 else "io.max"}"\ndevice = "{device}"\n'
        f'costs = "bytes"\ncapacity = "{capacity}"\ninterval = "{INTERVAL_MS}ms"\n'
        f"[resource.disk.tenant]\n{tenants}"
    )
    (folder / "url").write_text(f"bursar://127.0.0.1:{port}")
    process = subprocess.Popen(
        [sys.executable, "-m", "bursar", "serve", str(path)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "daemon.ready" in line:
            return process
    raise BursarError(f"bursar did not start on {device}: {process.wait()}: {''.join(said)[-500:]}")


def wait_for_io(
    controller: Controller, device: str, groups: dict[str, str], loads: dict[str, subprocess.Popen[bytes]]
) -> None:
    """Return when every group has done some I/O: fio takes its time to start on a busy machine."""
    began = time.monotonic()
    waiting = dict(groups)
    while waiting:
        for name, path in list(waiting.items()):
            counts = controller.read(path, device)
            if counts.read + counts.written > 0:
                del waiting[name]
            elif loads[name].poll() is not None or time.monotonic() - began > START_S:
                raise BursarError(
                    f"fio did no I/O in group {path} within {START_S} s (exit code {loads[name].poll()})"
                )
        time.sleep(0.01)


def read_for(
    controller: Controller,
    device: str,
    groups: dict[str, str],
    seconds: float,
    then: tuple[float, Callable[[], None]] | None = None,
) -> Readings:
    """What every group has done, time after time; `then` is a moment, and what is done at it."""
    began = time.monotonic()
    readings = Readings([], {name: [] for name in groups})
    while (now := time.monotonic() - began) < seconds:
        if then is not None and now >= then[0]:
            then[1]()
            then = None
        readings.at_s.append(now)
        for name, path in groups.items():
            counts = controller.read(path, device)
            readings.counts[name].append(counts.read + counts.written)
        time.sleep(INTERVAL_MS / 1000)
    return readings


def limits_of(controller: Controller, groups: dict[str, str]) -> list[str]:
    """Every limit that stands in these groups."""
    names = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device", "io.max")
    files = [controller.root / path / name for path in groups.values() for name in names]
    return [line for file in files if file.exists() for line in file.read_text().splitlines()]


def measure(quick: bool) -> dict[str, Any]:
    """Both groups together, then one alone, then bursar killed: what each got, and what stays."""
    together_s, alone_s = (5.0, 2.0) if quick else (12.0, 4.0)
    controller = find_controller()
    with tempfile.TemporaryDirectory(prefix="bursar-blkio-", dir="/var/tmp") as name:
        folder = Path(name)
        device = find_device(name)
        for tenant in WEIGHTS:
            write_file(folder / f"{tenant}.data")
        with make_groups(controller) as groups:
            return _measure(controller, folder, device, groups, together_s, alone_s)


def write_file(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(FILE_MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())


def _measure(
    controller: Controller,
    folder: Path,
    device: str,
    groups: dict[str, str],
    together_s: float,
    alone_s: float,
) -> dict[str, Any]:
    processes: list[subprocess.Popen[Any]] = []
    try:
        bursar = start_bursar(folder, device, groups)
        processes.append(bursar)
        loads = {
            tenant: start_fio(folder, tenant, controller.root / groups[tenant], 2 * START_S)
            for tenant in WEIGHTS
        }
        processes.extend(loads.values())
        wait_for_io(controller, device, groups, loads)
        stop_b = loads["b"].terminate  # and not by a time of its own: it may have begun late
        readings = read_for(controller, device, groups, together_s + alone_s, then=(together_s, stop_b))
        standing = limits_of(controller, groups)
        bursar.kill()
        lifted_s = _wait_until_lifted(controller, groups)
        return _findings(readings, standing, lifted_s)
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
            process.wait(timeout=20)


def _wait_until_lifted(controller: Controller, groups: dict[str, str]) -> float | None:
    """Seconds until no limit stands any more; None if some still does after ten."""
    began = time.monotonic()
    while time.monotonic() - began < 10:
        if not limits_of(controller, groups):
            return time.monotonic() - began
        time.sleep(0.01)
    return None


def _findings(readings: Readings, standing: list[str], lifted_s: float | None) -> dict[str, Any]:
    settled = SETTLE_S
    ended = _last_activity(readings, "b")
    a = readings.rate("a", settled, ended - 0.2)
    b = readings.rate("b", settled, ended - 0.2)
    took_over = _takeover(readings, ended)
    alone = readings.rate("a", ended + 4 * INTERVAL_MS / 1000, readings.at_s[-1])
    return {
        "capacity_mib": CAPACITY_BYTES / MIB,
        "a_mib": a / MIB,
        "b_mib": b / MIB,
        "ratio": b / a,
        "total_part": (a + b) / CAPACITY_BYTES,
        "alone_mib": alone / MIB,
        "alone_part": alone / CAPACITY_BYTES,
        "takeover_intervals": took_over,
        "limits_before_kill": len(standing),
        "lifted_after_s": lifted_s,
    }


def _last_activity(readings: Readings, group: str) -> float:
    """The moment of the last reading in which a group's count still rose."""
    counts = readings.counts[group]
    return max(readings.at_s[k] for k in range(1, len(counts)) if counts[k] > counts[k - 1])


def _takeover(readings: Readings, ended: float) -> int | None:
    """Intervals after b's last I/O until a had 90 % of the capacity in one."""
    counts = readings.counts["a"]
    after = 0
    for k in range(1, len(counts)):
        if readings.at_s[k] <= ended:
            continue
        after += 1
        span = readings.at_s[k] - readings.at_s[k - 1]
        if (counts[k] - counts[k - 1]) / span >= 0.9 * CAPACITY_BYTES:
            return after
    return None
