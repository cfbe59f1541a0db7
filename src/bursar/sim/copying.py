"""Copies and fingerprints of books, fast: what `search` does for every state.

A book is a plain object: numbers, strings, bytes, frozen values, lists, dicts, sets, deques, and
other plain objects. Frozen values are shared, the rest is copied. Two references to one list stay
two references to one list. A book that refers to itself in a circle cannot be fingerprinted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import msgspec

Memo = dict[int, Any]
_SHARED = (int, float, str, bytes, bool, type(None), tuple, frozenset, Enum, type, FunctionType)


def clone(value: Any) -> Any:
    """A copy that shares only what cannot change."""
    return _clone(value, {})


def _clone(value: Any, memo: Memo) -> Any:
    kind = value.__class__
    try:
        copier = _COPIERS[kind]
    except KeyError:
        copier = _COPIERS[kind] = _choose_copier(kind)
    if copier is None:
        return value
    number = id(value)
    if number in memo:
        return memo[number]
    return copier(value, memo)


def _clone_list(value: list[Any], memo: Memo) -> list[Any]:
    copy: list[Any] = []
    memo[id(value)] = copy
    copy.extend(_clone(item, memo) for item in value)
    return copy


def _clone_dict(value: dict[Any, Any], memo: Memo) -> dict[Any, Any]:
    copy: dict[Any, Any] = {}
    memo[id(value)] = copy
    for key, item in value.items():
        copy[key] = _clone(item, memo)
    return copy


def _clone_set(value: set[Any], memo: Memo) -> set[Any]:
    copy = memo[id(value)] = set(value)
    return copy


def _clone_deque(value: deque[Any], memo: Memo) -> deque[Any]:
    copy: deque[Any] = deque(maxlen=value.maxlen)
    memo[id(value)] = copy
    copy.extend(_clone(item, memo) for item in value)
    return copy


def _clone_object(value: Any, memo: Memo) -> Any:
    copy = object.__new__(value.__class__)
    memo[id(value)] = copy
    state = copy.__dict__
    for name, item in value.__dict__.items():
        # The commonest case by far, without a call.
        state[name] = item if item.__class__ in _ATOMS else _clone(item, memo)
    return copy


def _clone_slots(value: Any, memo: Memo) -> Any:
    copy = object.__new__(value.__class__)
    memo[id(value)] = copy
    for name in _slots_of(value.__class__):
        if hasattr(value, name):
            object.__setattr__(copy, name, _clone(getattr(value, name), memo))
    return copy


_ATOMS = frozenset((int, float, str, bytes, bool, type(None)))
_COPIERS: dict[type, Callable[[Any, Memo], Any] | None] = {
    list: _clone_list,
    dict: _clone_dict,
    set: _clone_set,
    deque: _clone_deque,
}


def _choose_copier(kind: type) -> Callable[[Any, Memo], Any] | None:
    if issubclass(kind, (list, dict, set, deque)):
        raise TypeError(f"{kind.__name__} derives from a container: a book keeps plain ones")
    if issubclass(kind, _SHARED) or _is_frozen(kind):
        return None
    if issubclass(kind, (MethodType, BuiltinFunctionType)):
        raise TypeError("a book keeps no bound methods: a copy would still act on the original")
    if hasattr(kind, "__array__"):
        return _clone_array
    return _clone_slots if _slots_of(kind) else _clone_object


def _clone_array(value: Any, memo: Memo) -> Any:
    copy = memo[id(value)] = value.copy()
    return copy


def _is_frozen(kind: type) -> bool:
    if issubclass(kind, msgspec.Struct):
        return bool(kind.__struct_config__.frozen)
    return is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _slots_of(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name in getattr(base, "__slots__", ()) if name != "__weakref__"]


def freeze(value: Any) -> Hashable:
    """A value that is equal for equal states of a book, and otherwise differs."""
    kind = value.__class__
    if kind in _ATOMS:
        return value  # type: ignore[no-any-return]
    try:
        freezer = _FREEZERS[kind]
    except KeyError:
        freezer = _FREEZERS[kind] = _choose_freezer(kind)
    return freezer(value)


def _freeze_items(value: Any) -> Hashable:
    return tuple([item if item.__class__ in _ATOMS else freeze(item) for item in value])


def _freeze_dict(value: dict[Any, Any]) -> Hashable:
    # Order counts: a book may walk its dicts.
    return tuple(value), _freeze_items(value.values())


def _freeze_object(value: Any) -> Hashable:
    return value.__class__, _freeze_dict(value.__dict__)


def _freeze_slots(value: Any) -> Hashable:
    names = [name for name in _slots_of(value.__class__) if hasattr(value, name)]
    return value.__class__, tuple(names), _freeze_items([getattr(value, name) for name in names])


def _freeze_struct(value: Any) -> Hashable:
    return value.__class__, _freeze_items([getattr(value, name) for name in value.__struct_fields__])


def _freeze_dataclass(value: Any) -> Hashable:
    # What does not count where two of them are compared is no part of the state: something kept ready.
    counted = [field.name for field in fields(value) if field.compare]
    return value.__class__, _freeze_items([getattr(value, name) for name in counted])


def _freeze_array(value: Any) -> Hashable:
    return value.dtype.str, value.shape, value.tobytes()


def _same(value: Any) -> Hashable:
    return value  # type: ignore[no-any-return]


_FREEZERS: dict[type, Callable[[Any], Hashable]] = {
    list: _freeze_items,
    tuple: _freeze_items,
    deque: _freeze_items,
    dict: _freeze_dict,
    set: frozenset,
    frozenset: _same,
}


def _choose_freezer(kind: type) -> Callable[[Any], Hashable]:
    if issubclass(kind, msgspec.Struct):
        return _freeze_struct
    if is_dataclass(kind):
        return _freeze_dataclass
    if issubclass(kind, tuple):
        return _freeze_items
    if issubclass(kind, (Enum, type, FunctionType, int, float, str, bytes)):
        return _same
    if hasattr(kind, "__array__"):
        return _freeze_array
    return _freeze_slots if _slots_of(kind) else _freeze_object
