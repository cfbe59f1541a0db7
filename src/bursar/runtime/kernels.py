"""Atomic operations on a 64-bit word at an address: compiled, because Python has none."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_WORD = ir.IntType(64)


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _WORD.as_pointer())


@intrinsic
def _add(typingctx: Any, address: Any, amount: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "seq_cst")

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def _exchange(typingctx: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("xchg", _pointer(builder, args[0]), args[1], "seq_cst")

    return types.uint64(types.uint64, types.uint64), generate


@intrinsic
def _compare_and_swap(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pair = builder.cmpxchg(_pointer(builder, args[0]), args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 0)

    return types.uint64(types.uint64, types.uint64, types.uint64), generate


@njit("uint64(uint64, uint64)", cache=True)
def fetch_add(address: int, amount: int) -> int:
    """Add, wrapping, and return the value before."""
    return _add(address, amount)  # type: ignore[call-arg]


@njit("uint64(uint64, uint64)", cache=True)
def exchange(address: int, value: int) -> int:
    """Write, and return the value before."""
    return _exchange(address, value)  # type: ignore[call-arg]


@njit("uint64(uint64, uint64, uint64)", cache=True)
def compare_and_swap(address: int, expected: int, value: int) -> int:
    """Write if the word is `expected`; return the value before."""
    return _compare_and_swap(address, expected, value)  # type: ignore[call-arg]
