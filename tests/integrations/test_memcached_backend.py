"""The memcached backend against a real memcached, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from memcached_server import find_free_port, run_memcached

from bursar.errors import NoAnswerError, RemoteError, UnreachableError, UsageError
from bursar.integrations.memcached_backend import VALUE_MAX_BYTES, MemcachedBackend

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def open_backend(address: str, **options: float) -> AsyncIterator[MemcachedBackend]:
    backend = MemcachedBackend(address, **options)  # type: ignore[arg-type]
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def standing_in(answer: bytes) -> AsyncIterator[str]:
    """A server that says the same to every request, and nothing if that is empty."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.needs("memcached")
async def test_what_was_set_is_got_until_it_is_deleted() -> None:
    with run_memcached() as (address, _):
        async with open_backend(address) as backend:
            values = {
                "small": b"",
                "tricky": b"\r\nEND\r\nVALUE x 0 1\r\n",
                "large": os.urandom(1_000_000),
            }
            for key, value in values.items():
                await backend.set(key, value)
            assert {key: await backend.get(key) for key in values} == values
            assert await backend.get("absent") is None
            assert await backend.delete("small") is True
            assert await backend.delete("small") is False
            assert await backend.get("small") is None


@pytest.mark.needs("memcached")
async def test_answers_reach_those_who_asked_with_many_in_flight() -> None:
    with run_memcached() as (address, _):
        async with open_backend(address, connections=3) as backend:
            await asyncio.gather(*(backend.set(f"k{k}", b"%d" % k) for k in range(500)))
            got = await asyncio.gather(*(backend.get(f"k{k % 600}") for k in range(1_200)))
            assert got == [b"%d" % (k % 600) if k % 600 < 500 else None for k in range(1_200)]


@pytest.mark.needs("memcached")
async def test_a_killed_server_fails_what_was_asked_and_a_new_one_is_used() -> None:
    port = find_free_port()
    with run_memcached(port) as (address, process):
        backend = MemcachedBackend(address, connections=1)
        await backend.open()
        process.send_signal(signal.SIGSTOP)
        asked = asyncio.ensure_future(backend.get("k"))
        await asyncio.sleep(0)
        process.kill()
        with pytest.raises(NoAnswerError, match="closed the connection"):
            await asked
        process.wait()
        with pytest.raises(UnreachableError, match=f"no memcached answers at 127.0.0.1:{port}"):
            await backend.get("k")
    with run_memcached(port):
        assert await backend.get("k") is None
    await backend.close()


@pytest.mark.needs("memcached")
async def test_a_stopped_server_costs_the_timeout_and_no_more() -> None:
    with run_memcached() as (address, process):
        async with open_backend(address, timeout_s=0.2) as backend:
            process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(5):
                with pytest.raises(NoAnswerError, match=r"within 0\.2 s"):
                    await backend.get("k")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"x" * 5_000, "a line of more than 2048 bytes"),
        (b"VALUE k 0 99999999\r\n", "not the head of a value"),
        (b"VALUE k 0 2000000\r\n", "a value of 2000000 bytes"),
        (b"VALUE k 0 three\r\nabc\r\nEND\r\n", "not the head of a value"),
        (b"VALUE k 0 1\r\nabcdefghijk\r\n", "does not end where its length says"),
    ],
)
async def test_a_server_that_breaks_the_protocol_is_left(answer: bytes, why: str) -> None:
    async with standing_in(answer) as address, open_backend(address) as backend:
        async with asyncio.timeout(5):
            with pytest.raises(NoAnswerError, match=why):
                await backend.get("k")


async def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    """Else the next who asks would get another's answer."""
    answer = b"END\r\nVALUE k 0 1\r\nx\r\nEND\r\n"
    async with standing_in(answer) as address, open_backend(address, connections=1) as backend:
        for _ in range(20):
            assert await backend.get("k") is None
            await asyncio.sleep(0.005)


async def test_an_error_of_the_server_is_its_own_and_the_connection_goes_on() -> None:
    async with standing_in(b"SERVER_ERROR out of memory\r\n") as address, open_backend(address) as backend:
        for _ in range(3):
            with pytest.raises(RemoteError, match="out of memory"):
                await backend.get("k")


@pytest.mark.parametrize("key", ["", "a b", "a\r\nflush_all", "x" * 251, "\x7f"])
async def test_a_key_that_is_none_is_refused_before_it_is_sent(key: str) -> None:
    async with standing_in(b"STORED\r\n") as address, open_backend(address) as backend:
        with pytest.raises(UsageError, match="no key for memcached"):
            await backend.get(key)
        with pytest.raises(UsageError, match="more than memcached takes"):
            await backend.set("k", bytes(VALUE_MAX_BYTES + 1))


@pytest.mark.parametrize("address", ["", "localhost", "memcached://localhost", "a:0", "a:70000", ":1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="write memcached://host:port"):
        MemcachedBackend(address)
