"""Clients of the services. Every third hangs up in the middle of what it is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

Call = Callable[[int, str, bool], Awaitable[str]]
"""(port, tenant, whether to hang up) -> what became of it: "200", "left", "429", ..."""


async def call_http(port: int, tenant: str, leave: bool) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET / HTTP/1.1\r\nhost: x\r\nx-tenant: {tenant}\r\nconnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        status = head[9:12].decode()
        if status == "200" and leave:
            await reader.readuntil(b"word ")
            return "left"
        await reader.read()
        return status
    finally:
        writer.close()


async def call_grpc(port: int, tenant: str, leave: bool) -> str:
    import grpc

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_stream("/web.Story/Tell")(b"", metadata=(("x-tenant", tenant),), timeout=30)
        try:
            async for _ in call:
                if leave:
                    call.cancel()
                    return "left"
        except grpc.aio.AioRpcError as error:
            return "429" if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED else error.code().name
        return "200"


async def call_many(call: Call, port: int, tenant: str, calls: int, at_once: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    left = iter(range(calls))

    async def run() -> None:
        for number in left:
            counts[await call(port, tenant, number % 3 == 2)] += 1

    await asyncio.gather(*(run() for _ in range(at_once)))
    return counts
