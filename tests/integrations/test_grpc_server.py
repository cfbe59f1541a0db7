"""The interceptor for gRPC servers: calls are charged, refused and settled, streams included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from bursar.integrations.grpc_server import BursarInterceptor, by_header, current_grant

POLICY = """
[resource.llm]
kind = "quota"
window = "day"
[resource.llm.tenant]
acme = {{ limit = 10 }}
[daemon]
http = "off"
state = "{state}"
"""
METADATA = (("x-tenant", "acme"),)


async def settle(request: bytes, context: Any) -> bytes:
    current_grant().settle(int(request))
    return request


async def fail(request: bytes, context: Any) -> bytes:
    raise ValueError("no")


async def refuse(request: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
    raise AssertionError


async def count(request: bytes, context: Any) -> AsyncIterator[bytes]:
    for number in range(3):
        yield b"%d" % number
    current_grant().settle(3)


async def tell_for_ever(request: bytes, context: Any) -> AsyncIterator[bytes]:
    while True:
        yield b"more"
        current_grant().settle(1)
        await asyncio.sleep(0.005)


def plain(request: bytes, context: Any) -> bytes:
    return request


HANDLERS = {
    "Plain": grpc.unary_unary_rpc_method_handler(plain),
    "Settle": grpc.unary_unary_rpc_method_handler(settle),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
    "TellForEver": grpc.unary_stream_rpc_method_handler(tell_for_ever),
    "Count": grpc.unary_stream_rpc_method_handler(count),
}


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY.format(state=tmp_path / "state"))
    tenant = by_header("x-tenant")
    interceptor = BursarInterceptor(bursar=str(file), resource="llm", tenant=tenant, amount=5, wait=5.0)
    server = grpc.aio.server(interceptors=[interceptor])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Llm", HANDLERS),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0.2)
    await interceptor.close()


async def ask(channel: grpc.aio.Channel, method: str, request: bytes = b"", metadata: Any = METADATA) -> Any:
    return await channel.unary_unary(f"/test.Llm/{method}")(request, metadata=metadata, timeout=20)


async def ask_in_vain(
    channel: grpc.aio.Channel, method: str, metadata: Any = METADATA
) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(channel, method, metadata=metadata)
    return caught.value


async def test_calls_are_charged_what_they_settle_and_then_refused(channel: grpc.aio.Channel) -> None:
    assert await ask(channel, "Settle", b"4") == b"4"
    assert await ask(channel, "Settle", b"2") == b"2"
    refused = await ask_in_vain(channel, "Settle")
    assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(refused.trailing_metadata())["ratelimit"].startswith('"llm";r=4')


async def test_a_call_that_failed_costs_nothing(channel: grpc.aio.Channel) -> None:
    for _ in range(4):
        assert (await ask_in_vain(channel, "Fail")).code() == grpc.StatusCode.UNKNOWN
        assert (await ask_in_vain(channel, "Refuse")).code() == grpc.StatusCode.NOT_FOUND
    assert await ask(channel, "Settle", b"5") == b"5"


async def test_a_stream_is_one_call_under_one_grant(channel: grpc.aio.Channel) -> None:
    for _ in range(2):
        call = channel.unary_stream("/test.Llm/Count")(b"", metadata=METADATA, timeout=20)
        assert [piece async for piece in call] == [b"0", b"1", b"2"]
    assert (await ask_in_vain(channel, "Settle")).code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_stream_whose_client_leaves_costs_what_it_has_used(channel: grpc.aio.Channel) -> None:
    for _ in range(3):
        call = channel.unary_stream("/test.Llm/TellForEver")(b"", metadata=METADATA, timeout=20)
        assert await call.read() == await call.read() == b"more"
        call.cancel()
    async with asyncio.timeout(10):
        while (await try_to_use(channel, b"5")) != grpc.StatusCode.OK:
            await asyncio.sleep(0.01)  # until the server has heard of the last one's leaving
    assert await try_to_use(channel, b"2") == grpc.StatusCode.RESOURCE_EXHAUSTED, "3 + 5 of 10, and 5 to hold"


async def try_to_use(channel: grpc.aio.Channel, used: bytes) -> grpc.StatusCode:
    try:
        await ask(channel, "Settle", used)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_a_handler_that_settles_more_than_was_acquired_spoils_no_answer(
    channel: grpc.aio.Channel,
) -> None:
    assert await ask(channel, "Settle", b"7") == b"7"
    assert await ask(channel, "Settle", b"5") == b"5"
    assert (await ask_in_vain(channel, "Settle")).code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_whoever_is_nobody_is_told_so(channel: grpc.aio.Channel) -> None:
    nobody = await ask_in_vain(channel, "Settle", metadata=())
    assert nobody.code() == grpc.StatusCode.INVALID_ARGUMENT
    stranger = await ask_in_vain(channel, "Settle", metadata=(("x-tenant", "stranger"),))
    assert stranger.code() == grpc.StatusCode.PERMISSION_DENIED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(channel, "None")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_handler_that_cannot_be_guarded_is_not_run(channel: grpc.aio.Channel) -> None:
    assert (await ask_in_vain(channel, "Plain")).code() == grpc.StatusCode.UNKNOWN
