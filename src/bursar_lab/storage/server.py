"""The storage target's process: connections in, a filter, I/O threads, and the loop of its share.

Three modes: `none` serves first come, first served; `static` holds each tenant to its weight's part
of the capacity, as Lustre's rules would; `share` lends and pays back. All three go through the
same filter: without rules it is a plain queue."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bursar.errors import BursarError, NetworkError, UsageError
from bursar.runtime import logs
from bursar.shares.filter import Filter
from bursar.shares.handout import Handout, Line, Lines
from bursar.shares.queues import Request
from bursar.shares.target import FilterRules, Seen
from bursar.world import SECOND_NS
from bursar_lab.storage.device import Device
from bursar_lab.storage.protocol import (
    DONE,
    FAILED,
    OPERATIONS,
    OUTSTANDING_MAX,
    READ,
    Command,
    Hello,
    Outcome,
    read_command,
    read_hello,
    send_outcome,
)

IO_THREADS = 4
CONNECTIONS_MAX = 256
HELLO_TIMEOUT_S = 5.0
SEND_TIMEOUT = struct.pack("ll", 5, 0)
"""Five seconds: a tenant that does not take its replies loses its connection, not a thread of all."""


@dataclass(slots=True, eq=False)
class Peer:
    """One connection. Replies are sent by I/O threads, one at a time."""

    connection: socket.socket
    hello: Hello
    room: threading.BoundedSemaphore
    lock: threading.Lock


@dataclass(frozen=True, slots=True)
class Work:
    peer: Peer
    command: Command
    data: bytearray


class Scheduler:
    """The filter, shared by threads. Where one waits for the next request, and rules change."""

    def __init__(self, *, eager: bool) -> None:
        self._filter: Filter[Work] = Filter(eager=eager)
        self._rules = FilterRules(self._filter)
        self._changed = threading.Condition()
        self._closed = False
        self.served: dict[str, int] = {}

    def submit(self, tenant: str, work: Work) -> None:
        with self._changed:
            operation = OPERATIONS[work.command.operation]
            self._filter.submit(tenant, work.command.length, work, time.monotonic_ns(), operation)
            self._changed.notify()

    def next(self) -> Request[Work] | None:
        """Wait for a request that may go; None when the server closes."""
        with self._changed:
            while not self._closed:
                now = time.monotonic_ns()
                request = self._filter.take(now)
                if request is not None:
                    return request
                next_at = self._filter.next_at()
                self._changed.wait(None if next_at is None else max(0, next_at - now) / SECOND_NS)
        return None

    def count(self, tenant: str, length: int) -> None:
        with self._changed:
            self.served[tenant] = self.served.get(tenant, 0) + length

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # The enforcer of the share's loop (`bursar.shares.target.Enforcer`)

    async def collect(self) -> Seen:
        with self._changed:
            return Seen(demand=self._filter.collect())

    async def apply(self, handout: Handout) -> None:
        with self._changed:
            self._rules.apply(handout, time.monotonic_ns())
            self._changed.notify_all()

    async def release(self) -> None:
        with self._changed:
            self._rules.clear(time.monotonic_ns())
            self._changed.notify_all()

    def hold(self, weights: Mapping[str, int], capacity_bytes: int) -> None:
        """Static rules: each tenant's part of the capacity, whoever is active."""
        total = sum(weights.values())
        lines = {
            name: Line(0, 0, 0, 0, 0, max(1, capacity_bytes * weight // total), weight)
            for name, weight in weights.items()
        }
        with self._changed:
            self._rules.apply(Handout(0, capacity_bytes, Lines.of(lines)), time.monotonic_ns())


class StorageServer:
    """Accepts tenants on a Unix socket and does their I/O."""

    def __init__(self, path: Path, device: Device, scheduler: Scheduler, threads: int = IO_THREADS) -> None:
        if threads < 1:
            raise UsageError(f"a storage target has at least 1 I/O thread, not {threads}")
        self._path = path
        self._device = device
        self._scheduler = scheduler
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._peers: set[Peer] = set()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._serve, name=f"io-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        self._path.unlink(missing_ok=True)
        self._listener.bind(str(self._path))
        os.chmod(self._path, 0o600)
        self._listener.listen(64)
        for thread in self._threads:
            thread.start()
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def close(self) -> None:
        """Stop taking requests, finish those in hand, and let go of everything."""
        self._listener.close()
        self._path.unlink(missing_ok=True)
        self._scheduler.close()
        for thread in self._threads:
            thread.join(timeout=5)
        with self._lock:
            for peer in self._peers:
                peer.connection.close()
        self._device.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """One connection from its hello to its end. Bad bytes end it, and nothing else."""
        peer: Peer | None = None
        try:
            connection.settimeout(HELLO_TIMEOUT_S)
            hello = read_hello(connection)
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)
            peer = Peer(connection, hello, threading.BoundedSemaphore(OUTSTANDING_MAX), threading.Lock())
            with self._lock:
                if len(self._peers) >= CONNECTIONS_MAX:
                    raise NetworkError(f"this target takes {CONNECTIONS_MAX} connections")
                self._peers.add(peer)
            self._read(peer)
        except (BursarError, OSError) as error:
            logs.debug("storage.refused", why=str(error))
        finally:
            with self._lock:
                if peer is not None:
                    self._peers.discard(peer)
            connection.close()

    def _read(self, peer: Peer) -> None:
        while True:
            peer.room.acquire()
            got = read_command(peer.connection)
            if got is None:
                return
            self._scheduler.submit(peer.hello.tenant, Work(peer, *got))

    def _serve(self) -> None:
        while (request := self._scheduler.next()) is not None:
            work = request.item
            status, answer = self._perform(request.tenant, work)
            self._scheduler.count(request.tenant, request.cost)
            work.peer.room.release()
            length = len(answer) if work.command.operation == READ else 0
            try:
                with work.peer.lock:
                    send_outcome(work.peer.connection, Outcome(work.command.number, status, length), answer)
            except OSError as error:
                logs.debug("storage.lost", tenant=request.tenant, why=str(error))
                work.peer.connection.close()

    def _perform(self, tenant: str, work: Work) -> tuple[int, bytes]:
        try:
            return DONE, self._device.perform(tenant, work.peer.hello.file, work.command, work.data)
        except OSError as error:
            logs.warning("storage.failed", tenant=tenant, why=str(error))
            return FAILED, b""
