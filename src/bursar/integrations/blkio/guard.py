"""Gives limits back as they were when bursar is gone without having done so.

A guard is a process of its own that waits for the end of a pipe: the kernel closes bursar's end
when bursar dies, however it dies. A bursar that ends properly gives them back itself and dismisses the
guard. Should both be killed, the next start does it (`found`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from bursar.integrations.blkio.found import FoundLimits, give_back, read_found
from bursar.integrations.blkio.groups import BlkioV1, Controller, IoV2, Unit

DISMISSED = b"dismissed\n"
_WAIT_S = 5.0


class Post(msgspec.Struct, frozen=True):
    """What a guard watches over."""

    version: int
    root: str
    device: str
    found: str
    life: str
    unit: Unit = "bytes"


class Guard:
    """The guard as bursar sees it."""

    def __init__(self, controller: Controller, device: str, found: FoundLimits) -> None:
        root, path = str(controller.root), str(found.path)
        self._post = Post(controller.version, root, device, path, found.life, controller.unit)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def ensure(self) -> None:
        """Post a guard, if there is none or it was killed."""
        if self._process is not None and self._process.poll() is None:
            return
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "bursar.integrations.blkio.guard",
                msgspec.json.encode(self._post).decode(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it stands: a limit set from now on has a guard

    def dismiss(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.communicate(DISMISSED, timeout=_WAIT_S)
        self._process = None


def main() -> int:
    post = msgspec.json.decode(sys.argv[1], type=Post)
    print("ready", flush=True)
    if sys.stdin.buffer.readline() == DISMISSED:
        return 0
    controller: Controller = (BlkioV1 if post.version == 1 else IoV2)(Path(post.root), post.unit)
    found = read_found(Path(post.found))
    if found is not None and found.life == post.life:  # else another life was faster, and gave them back
        for group, limits in found.limits.items():
            give_back(controller, post.device, group, limits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
