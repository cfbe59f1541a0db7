"""The event loop: uvloop's where it is installed (`bursar[fast]`), else asyncio's own."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec


def has_uvloop() -> bool:
    return find_spec("uvloop") is not None


def new_event_loop() -> asyncio.AbstractEventLoop:
    if not has_uvloop():
        return asyncio.new_event_loop()
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
