"""Reading and writing records in shared memory: compiled, as a network card would do it.

A record is a version and its bytes. The version is odd while a writer is at work; a reader that
finds it odd, or changed after copying, has seen a torn record and tries again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from bursar.runtime import kernels

TRIES_MAX = 10_000
"""Some milliseconds: then whoever waits gives up its processor to the writer."""

_swap: Any = kernels.compare_and_swap
_add: Any = kernels.fetch_add


@intrinsic
def _load_version(typingctx: Any, address: Any) -> Any:
    """Read a version. The fence keeps the copying that came before from being done after."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.fence("acquire")
        return builder.load_atomic(pointer, "acquire", 8)

    return types.uint64(types.uint64), generate


_load: Any = _load_version


@njit(cache=True)
def read_record(base: int, memory: Any, stride: int, size: int, index: int, out: Any, at: int) -> int:
    """Copy one record to `out[at:]`. Its version, or 0 if a writer never finished."""
    offset = index * stride
    address = np.uint64(base) + np.uint64(offset)
    for _ in range(TRIES_MAX):
        before = _load(address)
        if before & np.uint64(1):
            continue
        start = (offset + 64) // 8
        for k in range(size // 8):
            out[at + k] = memory[start + k]
        if _load(address) == before:
            return int(before) + 2
    return 0


@njit(cache=True, nogil=True)
def read_records(base: int, memory: Any, stride: int, size: int, indexes: Any, count: int, out: Any) -> int:
    """Copy `count` records one after another; how many were read whole."""
    for k in range(count):
        if read_record(base, memory, stride, size, indexes[k], out, k * (size // 8)) == 0:
            return k
    return count


@njit(cache=True, nogil=True)
def write_record(base: int, memory: Any, stride: int, size: int, index: int, data: Any) -> int:
    """Write one record; its new version, or 0 if another writer never finished."""
    offset = index * stride
    address = np.uint64(base) + np.uint64(offset)
    for _ in range(TRIES_MAX):
        before = _load(address)
        if before & np.uint64(1):
            continue
        if _swap(address, before, before + np.uint64(1)) == before:
            start = (offset + 64) // 8
            for k in range(size // 8):
                memory[start + k] = data[k]
            _add(address, np.uint64(1))
            return int(before) + 4
    return 0
