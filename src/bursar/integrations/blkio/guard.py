"""Lifts the limits when bursar is gone without having done so.

A guard is a process of its own that waits for the end of a pipe: the kernel closes bursar's end
when bursar dies, however it dies. A bursar that ends properly lifts its limits itself and
dismisses the guard. Should both be killed, the next start lifts what it finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from bursar.integrations.blkio.groups import BlkioV1, Controller, IoV2

DISMISSED = b"dismissed\n"
_WAIT_S = 5.0


class Post(msgspec.Struct, frozen=True):
    """What a guard watches over."""

    version: int
    root: str
    device: str
    groups: list[str]


class Guard:
    """The guard as bursar sees it."""

    def __init__(self, controller: Controller, device: str, groups: list[str]) -> None:
        self._post = Post(controller.version, str(controller.root), device, groups)
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
    controller: Controller = (BlkioV1 if post.version == 1 else IoV2)(Path(post.root))
    for group in post.groups:
        controller.unlimit(group, post.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
