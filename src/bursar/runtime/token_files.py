"""Secrets stand in files of their own, never in the policy."""

from __future__ import annotations

from pathlib import Path

from bursar.errors import UsageError

TOKEN_MIN = 16


def read_token(path: str) -> str:
    """The token in a file: its first line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the token file {path} cannot be read: {error}") from error
    if not lines or len(lines[0].strip()) < TOKEN_MIN:
        raise UsageError(f"the token file {path} must begin with a line of at least {TOKEN_MIN} characters")
    return lines[0].strip()
