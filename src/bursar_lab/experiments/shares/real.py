"""Runs a workload on the real storage target: a server process, and a process for each tenant."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bursar.errors import BursarError
from bursar_lab.experiments.shares.workloads import Workload
from bursar_lab.storage.config import Config, Mode, Sample, read_report
from bursar_lab.storage.tenant import Burst, Load

START_S = 0.5
GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one run showed. Samples count from the moment at which the tenants began."""

    mode: str
    samples: list[Sample]
    bursts: dict[str, list[list[Burst]]]
    config: Config


def run_real(workload: Workload, mode: Mode, **options: bool | int) -> Run:
    """One run of a workload in one mode; nothing of it stays behind."""
    with tempfile.TemporaryDirectory(prefix="bursar-storage-") as folder:
        root = Path(folder)
        config = Config(
            socket=str(root / "socket"),
            directory=str(root / "files"),
            report=str(root / "report.json"),
            rate_bytes=workload.rate_bytes,
            weights=workload.weights,
            mode=mode,
            **options,  # type: ignore[arg-type]
        )
        server = start_server(root, config)
        asked_at = time.monotonic()
        try:
            bursts, began = run_tenants(root, config, workload)
        finally:
            server.terminate()
            code = server.wait(timeout=GRACE_S)
        if code != 0:
            raise BursarError(f"the storage target ended with {code}")
        report = read_report(Path(config.report))
        shift = began - asked_at
        samples = [msgspec.structs.replace(each, at_s=each.at_s - shift) for each in report.samples]
        return Run(mode, samples, bursts, config)


def start_server(root: Path, config: Config) -> subprocess.Popen[str]:
    """Start the server and wait until it says that it is ready."""
    path = root / "config.json"
    path.write_bytes(msgspec.json.encode(config))
    server = subprocess.Popen(
        [sys.executable, "-m", "bursar_lab.storage", str(path)], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line.startswith("ready"):
        server.wait(timeout=GRACE_S)
        raise BursarError(f"the storage target did not start: {line or server.returncode}")
    return server


def run_tenants(root: Path, config: Config, workload: Workload) -> tuple[dict[str, list[list[Burst]]], float]:
    """Every tenant's process, begun at one moment, to its end."""
    processes: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, streams in workload.streams.items():
            path = root / f"{name}.json"
            path.write_bytes(msgspec.json.encode(Load(config.socket, name, streams)))
            processes[name] = subprocess.Popen(
                [sys.executable, "-m", "bursar_lab.storage.tenant", str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        for process in processes.values():
            assert process.stdout is not None
            process.stdout.readline()
        began = time.monotonic() + START_S
        outputs = {}
        for process in processes.values():
            assert process.stdin is not None
            process.stdin.write(f"{began}\n")
            process.stdin.flush()
        for name, process in processes.items():
            outputs[name], _ = process.communicate(timeout=workload.ends_s + GRACE_S)
            if process.returncode != 0:
                raise BursarError(f"tenant {name} ended with {process.returncode}")
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
    decode = msgspec.json.Decoder(list[list[Burst]]).decode
    return {name: decode(text) for name, text in outputs.items()}, began
