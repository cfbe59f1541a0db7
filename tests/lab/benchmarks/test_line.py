"""What harms the peers: a line that loses answers whose questions were carried out, or is cut."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator

import pytest

from bursar_lab.benchmarks.peers.servers import Line


class Counter(socketserver.StreamRequestHandler):
    asked = 0

    def handle(self) -> None:
        while self.rfile.readline():
            Counter.asked += 1
            self.wfile.write(b"%d\n" % Counter.asked)


@pytest.fixture
def port() -> Iterator[int]:
    Counter.asked = 0
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Counter) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def ask(connection: socket.socket) -> bytes:
    connection.sendall(b"?\n")
    return connection.recv(100)


def test_a_lost_answer_is_one_whose_question_was_carried_out(port: int) -> None:
    line = Line(port, lose=3)
    with socket.create_connection(("127.0.0.1", line.port), 5) as connection:
        assert [ask(connection), ask(connection), ask(connection)] == [b"1\n", b"2\n", b""]
    with socket.create_connection(("127.0.0.1", line.port), 5) as connection:
        assert ask(connection) == b"4\n"
    line.close()


def test_nothing_passes_a_line_that_is_cut_and_nobody_is_told(port: int) -> None:
    line = Line(port)
    with socket.create_connection(("127.0.0.1", line.port), 5) as connection:
        assert ask(connection) == b"1\n"
        line.cut()
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            ask(connection)
    assert Counter.asked == 1
    line.close()
