"""What is harmed: servers that are killed, paused and started again where they were, and a line to one that
can be cut."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar_lab.processes import await_port

BUFFER_BYTES = 65_536


class Server:
    """A child process that listens on one port for all its lives."""

    def __init__(self, command: list[str], port: int) -> None:
        self.port = port
        self._command = command
        self.start()

    def start(self) -> None:
        self._child = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await_port(self.port, self._child)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def pause(self) -> None:
        os.kill(self._child.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._child.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


def serve_redis(folder: Path, *options: str) -> Server:
    """As it comes, but for the options."""
    if shutil.which("redis-server") is None:
        raise BursarError("this needs redis-server: apt install redis-server")
    folder.mkdir(exist_ok=True)
    port = find_free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *options]
    return Server(command, port)


def serve_bursar(folder: Path, resources: str) -> Server:
    folder.mkdir(exist_ok=True)
    port = find_free_port()
    policy = folder / "policy.toml"
    policy.write_text(
        f'store = "sqlite://{folder}/store.db"\n{resources}\n[daemon]\nlisten = "127.0.0.1:{port}"\n'
        f'http = "off"\nstate = "{folder}/state"\n'
    )
    return Server([sys.executable, "-m", "bursar", "serve", str(policy)], port)


class Line:
    """What connects to `port` reaches the server, until the line is `cut`: then nothing arrives either way,
    and nobody is told. With `lose`, of every so many answers one is kept back and its connection closed:
    what was asked was done."""

    def __init__(self, to: int, lose: int = 0) -> None:
        self._to = to
        self._lose = lose
        self._answers = 0
        self._whole = True
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole = False

    def close(self) -> None:
        self._listener.close()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return  # closed, or the server is down: the caller is told by a reset
            self._sockets += [near, far]
            for source, target, answers in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pump, args=(source, target, answers), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(BUFFER_BYTES):
                self._answers += answers
                if answers and self._lose and self._answers % self._lose == 0:
                    break
                if self._whole:
                    target.sendall(data)
        except OSError:
            pass
        for each in (source, target):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
