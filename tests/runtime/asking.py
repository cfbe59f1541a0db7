"""Asking an HTTP server in this process, byte for byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from bursar.runtime.routes import Address


async def ask(at: Address, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(at.host, at.port)
    writer.write(request)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def get(at: Address, path: str, *headers: str) -> tuple[int, str]:
    lines = "".join(f"{header}\r\n" for header in headers)
    answer = await ask(at, f"GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n{lines}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def get_json(at: Address, path: str) -> tuple[int, Any]:
    status, body = await get(at, path)
    return status, json.loads(body)
