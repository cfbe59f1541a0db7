"""One disk, shared 3 to 1 between two control groups. As root, where the kernel has the controller:

    python examples/blkio_host.py /var/tmp

Two programs read the disk as fast as they can, each in its control group; bursar holds them to
their shares, and lifts the limits when it ends.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bursar.integrations.blkio.groups import Controller, find_controller, find_device

MIB = 1024 * 1024
CAPACITY = 40 * MIB
SECONDS = 6
READ = """
import mmap, os, sys
folder, path = sys.argv[1:]
open(f"{folder}/cgroup.procs", "w").write("0")     # from here on this process is in the group
file = os.open(path, os.O_RDONLY | os.O_DIRECT)
block, at = mmap.mmap(-1, 128 * 1024), 0           # direct I/O wants whole pages
while True:
    read = os.preadv(file, [block], at)
    at = at + read if read else 0
"""


def main(disk: str) -> None:
    controller = find_controller()
    groups = {name: f"bursar-example-{os.getpid()}-{name}" for name in ("gold", "bronze")}
    for path in groups.values():
        (controller.root / path).mkdir()
    readers: list[subprocess.Popen[bytes]] = []
    try:
        with tempfile.TemporaryDirectory(dir=disk) as folder:
            file = Path(folder) / "data"
            file.write_bytes(os.urandom(64 * MIB))
            os.sync()
            share(controller, groups, file, readers)
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
        time.sleep(0.2)
        for path in groups.values():
            (controller.root / path).rmdir()


def share(
    controller: Controller, groups: dict[str, str], file: Path, readers: list[subprocess.Popen[bytes]]
) -> None:
    policy = file.with_name("policy.toml")
    enforce = "blkio" if controller.version == 1 else "io.max"
    policy.write_text(
        f'[daemon]\nlisten = "127.0.0.1:0"\nhttp = "127.0.0.1:0"\nstate = "{file.parent}/state"\n'
        f'[resource.disk]\nkind = "share"\nenforce = "{enforce}"\ndevice = "{file}"\n'
        f'costs = "bytes"\ncapacity = "{CAPACITY}B/s"\n[resource.disk.tenant]\n'
        f'"{groups["gold"]}" = {{ weight = 3 }}\n"{groups["bronze"]}" = {{ weight = 1 }}\n'
    )
    command = [sys.executable, "-m", "bursar", "serve", str(policy)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as bursar:
        assert bursar.stderr is not None
        print(next(line for line in bursar.stderr if "daemon.ready" in line).split()[2], "is ready")
        for path in groups.values():
            read = [sys.executable, "-c", READ, str(controller.root / path), str(file)]
            readers.append(subprocess.Popen(read))
        measure(controller, groups, str(file))
        bursar.terminate()


def measure(controller: Controller, groups: dict[str, str], file: str) -> None:
    device = find_device(file)
    time.sleep(2)
    before = {name: controller.read(path, device).read for name, path in groups.items()}
    time.sleep(SECONDS)
    for name, path in groups.items():
        rate = (controller.read(path, device).read - before[name]) / SECONDS / MIB
        print(f"{name}: {rate:.1f} MiB a second")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "/var/tmp")
