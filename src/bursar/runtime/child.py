"""`python -m bursar.runtime.child MODULE:APP SOCKET`: a process of a worker, which makes its calls.

The function has the main thread. Another one hears that it is to stop, tells how far it is, and ends the
process when the worker is gone.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import signal
import socket
import sys
import threading

import msgspec

from bursar.claims.tracker import Dispatch, Report
from bursar.errors import BursarError
from bursar.runtime.apps import find_app
from bursar.runtime.children import HEAD, Said, Told, pack
from bursar.runtime.current import CurrentTask, enter
from bursar.runtime.functions import Functions, encode_result, make_current, write_failure

NOTE_S = 0.5


class Calls:
    """What the worker tells, and what it is told."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._told: queue.Queue[Dispatch] = queue.Queue()
        self._saying = threading.Lock()
        self._current: CurrentTask | None = None
        self._async: tuple[asyncio.AbstractEventLoop, asyncio.Task[bytes]] | None = None
        self._noted = ""

    def next(self) -> Dispatch:
        return self._told.get()

    def begin(self, current: CurrentTask) -> None:
        self._noted = ""
        self._current = current

    def run_async(self, task: asyncio.Task[bytes]) -> None:
        """It is cancelled when it is to stop."""
        self._async = asyncio.get_running_loop(), task

    def end(self, said: Said) -> None:
        self._current = self._async = None
        self._say(said)

    def _say(self, said: Said) -> None:
        with self._saying:
            self._connection.sendall(pack(said))

    def hear(self) -> None:
        """For a thread of its own: ends the process when the worker is gone."""
        while True:
            head = self._read(HEAD)
            told = msgspec.msgpack.decode(self._read(int.from_bytes(head, "big")), type=Told)
            if told.dispatch is not None:
                self._told.put(told.dispatch)
            elif (current := self._current) is not None:
                current.ask(told.stop)
                if self._async is not None:
                    loop, task = self._async
                    loop.call_soon_threadsafe(task.cancel)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            if not part:
                os._exit(1)
            data += part
        return data

    def tell_notes(self) -> None:
        """For a thread of its own."""
        while True:
            threading.Event().wait(NOTE_S)
            current = self._current
            if current is not None and current.note != self._noted:
                self._noted = current.note
                self._say(Said("note", current.note.encode()))


def work(functions: Functions, calls: Calls) -> None:
    while True:
        dispatch = calls.next()
        current = make_current(dispatch)
        calls.begin(current)
        enter(current)
        try:
            report = Report("ok", _make(functions, dispatch, calls)).bounded()
        except BursarError as error:
            report = Report("failed", f"{type(error).__name__}: {error}".encode())
        except BaseException as error:  # noqa: BLE001  whatever it raises is how it ended
            report = Report("failed", write_failure(error).encode())
        calls.end(Said("ok" if report.outcome == "ok" else "failed", report.result))


def _make(functions: Functions, dispatch: Dispatch, calls: Calls) -> bytes:
    declared, arguments = functions.read(dispatch)
    if not inspect.iscoroutinefunction(declared.function):
        return encode_result(declared.name, declared.function(**arguments))

    async def run() -> bytes:
        task = asyncio.current_task()
        assert task is not None, "asyncio.run makes one"
        calls.run_async(task)
        return encode_result(declared.name, await declared.function(**arguments))

    return asyncio.run(run())


def main() -> None:
    app, descriptor = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the worker's, which lets its tasks finish
    functions = find_app(app).functions
    calls = Calls(socket.socket(fileno=int(descriptor)))
    for act in (calls.hear, calls.tell_notes):
        threading.Thread(target=act, daemon=True).start()
    work(functions, calls)


if __name__ == "__main__":
    main()
