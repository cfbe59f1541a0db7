"""A first look at TOML text, before the parser: how deep it nests, and where each key stands.

The parser of the standard library recurses into nested values (10,000 levels end in a
RecursionError) and takes quadratic time over keys of many parts; and it forgets the lines. This
scan is linear, bounds both, and remembers the line of every key. It does not judge syntax: where
it loses its way it stops, and the parser says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from bursar.policy.shapes import Path

DEPTH_MAX = 32
"""Levels of nesting. A policy needs six."""

_TOKEN = re.compile(
    r"""
      (?P<comment>\#[^\n]*+)
    | (?P<long>\"{3}(?:[^\\\"]|\\.|\"{1,2}(?!\"))*+\"{3,5} | '{3}(?:[^']|'{1,2}(?!'))*+'{3,5})
    | (?P<quoted>\"(?:[^\"\\\n]|\\[^\n])*+\" | '[^'\n]*+')
    | (?P<unclosed>["'])
    | (?P<newline>\n)
    | (?P<blank>[\ \t\r]++)
    | (?P<mark>[\[\]{}=.,])
    | (?P<word>[^\s\[\]{}=.,"'\#]++)
    """,
    re.VERBOSE | re.DOTALL,
)

Lines = dict[Path, int]
Token = tuple[str, str, int]


def find_too_deep(text: str) -> int | None:
    """The line where nesting, or the parts of a key, first pass DEPTH_MAX; None if nowhere."""
    depth = dots = 0
    for _, token, line in _tokens(text):
        if token in ("[", "{"):
            depth += 1
        elif token in ("]", "}"):
            depth -= 1
        dots = dots + 1 if token == "." else 0 if token in _ENDS_A_KEY else dots
        if depth > DEPTH_MAX or dots > DEPTH_MAX:
            return line
    return None


_ENDS_A_KEY = frozenset("[]{}=,\n")


def find_lines(text: str) -> Lines:
    """The line of each table header, and of each key that begins a line."""
    lines: Lines = {}
    for path, line in _keys(text):
        lines.setdefault(path, line)
    return lines


def find_key(text: str, line: int) -> tuple[Path, int]:
    """The last key that stands at or before a line, and its own line."""
    found: tuple[Path, int] = ((), line)
    for path, key_line in _keys(text):
        if key_line > line:
            break
        found = path, key_line
    return found


def _keys(text: str) -> Iterator[tuple[Path, int]]:
    prefix: Path = ()
    for statement in _statements(text):
        path = tuple(_unquote(token) for sort, token, _ in _head(statement) if sort in ("word", "quoted"))
        if statement[0][1] == "[":
            prefix, path = path, ()
        yield prefix + path, statement[0][2]


def _tokens(text: str) -> Iterator[Token]:
    """(sort, token, line) for all that carries meaning, up to the first thing that is not TOML."""
    line, position = 1, 0
    while (match := _TOKEN.match(text, position)) and match.lastgroup != "unclosed":
        sort = match.lastgroup or ""
        if sort not in ("comment", "blank"):
            yield sort, match[0], line
        if sort in ("newline", "long"):
            line += match[0].count("\n")
        position = match.end()


def _statements(text: str) -> Iterator[list[Token]]:
    """The tokens of one header or assignment at a time; a list may span lines."""
    statement: list[Token] = []
    depth = 0
    for token in _tokens(text):
        depth += (token[1] in ("[", "{")) - (token[1] in ("]", "}"))
        if token[0] != "newline":
            statement.append(token)
        elif statement and depth <= 0:
            yield statement
            statement, depth = [], 0
    if statement:
        yield statement


def _head(statement: list[Token]) -> Iterator[Token]:
    """The tokens that name the key: those before the '='."""
    for token in statement:
        if token[1] == "=":
            return
        yield token


def _unquote(token: str) -> str:
    if token[0] == "'":
        return token[1:-1]
    if token[0] != '"':
        return token
    try:
        return str(msgspec.json.decode(token))
    except msgspec.DecodeError:  # an escape that only TOML has: the key is then found by its parent
        return token
