"""A tenant of the storage target: a process with streams of I/O, continuous or in bursts.

`python -m bursar_lab.storage.tenant LOAD.json` runs it to its end and prints what each
stream did as JSON."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path

import msgspec

from bursar.errors import BursarError, NetworkError, UsageError
from bursar_lab.storage.protocol import (
    DONE,
    IO_MAX_BYTES,
    READ,
    WRITE,
    Command,
    Hello,
    read_outcome,
    send_command,
    send_hello,
)

WINDOW = 2
FILE_BYTES = 64 * IO_MAX_BYTES


class Stream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One connection with its own file: `bursts` times `burst_bytes`, one every `every_s`, or as
    soon as the one before is done when that takes longer. A continuous stream is one burst.
    `until_s` ends it early. The file is written over from its beginning when it is full."""

    burst_bytes: int
    bursts: int = 1
    every_s: float = 0.0
    start_s: float = 0.0
    until_s: float = 3600.0
    io_bytes: int = IO_MAX_BYTES
    write: bool = True
    window: int = WINDOW

    def __post_init__(self) -> None:
        if not 1 <= self.io_bytes <= IO_MAX_BYTES or self.burst_bytes < self.io_bytes:
            raise UsageError("io_bytes is 1 byte to 1 MiB, and a burst is at least one I/O")


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    socket: str
    tenant: str
    streams: list[Stream]


class Burst(msgspec.Struct, frozen=True):
    """Seconds since the tenant began, and bytes done."""

    due_s: float
    done_s: float
    done_bytes: int


class StreamRun:
    """One stream, in a thread of its own."""

    def __init__(self, load: Load, number: int, began: float) -> None:
        self._stream = load.streams[number]
        self._began = began
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.connect(load.socket)
        send_hello(self._connection, Hello(load.tenant, number))
        self._data = bytes(self._stream.io_bytes)
        self._sent = 0
        self.bursts: list[Burst] = []
        self.error: Exception | None = None

    def run(self) -> None:
        stream = self._stream
        try:
            for number in range(stream.bursts):
                due_s = stream.start_s + number * stream.every_s
                time.sleep(max(0.0, due_s - self._time()))
                if self._time() >= stream.until_s:
                    break
                done = self._burst(stream.burst_bytes // stream.io_bytes)
                self.bursts.append(Burst(due_s, self._time(), done * stream.io_bytes))
        except (OSError, BursarError) as error:
            self.error = error
        finally:
            self._connection.close()

    def _burst(self, count: int) -> int:
        """Up to `count` I/Os, `window` of them outstanding; how many were done."""
        sent = done = 0
        while done < count:
            more = self._time() < self._stream.until_s
            if more and sent < count and sent - done < self._stream.window:
                self._send()
                sent += 1
            elif sent == done:
                return done
            else:
                if read_outcome(self._connection).status != DONE:
                    raise NetworkError("the storage target could not do an I/O; see its log")
                done += 1
        return done

    def _send(self) -> None:
        size = self._stream.io_bytes
        offset = self._sent * size % FILE_BYTES
        self._sent += 1
        operation = WRITE if self._stream.write else READ
        send_command(self._connection, Command(self._sent, operation, size, offset), self._data)

    def _time(self) -> float:
        return time.monotonic() - self._began


def run(load: Load, began: float) -> list[list[Burst]]:
    """Every stream to its end. Raises the first error any of them met."""
    runs = [StreamRun(load, number, began) for number in range(len(load.streams))]
    threads = [threading.Thread(target=each.run, daemon=True) for each in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in runs:
        if each.error is not None:
            raise each.error
    return [each.bursts for each in runs]


def main() -> int:
    try:
        load = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Load)
        print("ready", flush=True)
        # All tenants of a run begin at the moment their starter says, not as they come up.
        began = float(sys.stdin.readline())
        bursts = run(load, began)
    except (OSError, IndexError, ValueError, BursarError, msgspec.MsgspecError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(bursts) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
