"""Who speaks another version of the protocol is refused by name, and both sides learn why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bursar.errors import UnreachableError
from bursar.runtime import frames
from bursar.runtime.network import SocketNetwork
from bursar.world import SECOND_NS, Message

OTHER = frames.VERSION + 1
SECRET = bytes(32)


class Question(Message, frozen=True):
    number: int


def say(name: str) -> bytes:
    return frames.encode(frames.HELLO, 0, "", frames.Hello(OTHER, name, 1, bytes(16)))


def find_sentence(name: str) -> str:
    return f"{name} speaks version {OTHER} of the protocol, this node {frames.VERSION}; run the same version"


@pytest.fixture
async def node() -> AsyncIterator[SocketNetwork]:
    opened = SocketNetwork("a", 1, secret=SECRET)
    yield opened
    await opened.close()


@pytest.mark.parametrize("name", ["b", "client/1"])
async def test_who_dials_with_another_version_is_told_why(
    node: SocketNetwork, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    at = await node.listen("127.0.0.1:0")
    reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
    writer.write(say(name))
    async with asyncio.timeout(5):
        said = await reader.read()
    writer.close()
    assert find_sentence(name).encode() in said
    assert any(find_sentence(name) in str(record.__dict__) for record in caplog.records)


async def test_who_answers_with_another_version_is_refused_by_who_dialled(node: SocketNetwork) -> None:
    said: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(say("b"))
        said.set_result(await reader.read())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        node.add_route("b", f"{host}:{port}")
        with pytest.raises(UnreachableError, match=find_sentence("b")):
            await node.call("b", "questions", Question(1), Question, SECOND_NS)
        async with asyncio.timeout(5):
            assert find_sentence("b").encode() in await said
