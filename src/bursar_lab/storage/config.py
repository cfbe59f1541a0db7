"""What a storage target is told, and what it tells."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from bursar.errors import UsageError

Mode = Literal["none", "static", "share"]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One storage target.

    mode          none: first come, first served; static: fixed rates by weight; share: bursar's
    eager         in mode share, idle threads take what is due next; False is the paper's filter
    needed_first  in mode share, tokens go first where they are needed; False is the paper's rule
    """

    socket: str
    directory: str
    report: str
    rate_bytes: int
    weights: dict[str, int]
    mode: Mode = "share"
    threads: int = 4
    interval_ms: int = 100
    sample_ms: int = 100
    eager: bool = True
    needed_first: bool = True

    def __post_init__(self) -> None:
        if self.rate_bytes < 1 or self.threads < 1 or self.interval_ms < 1 or self.sample_ms < 1:
            raise UsageError("rate_bytes, threads, interval_ms and sample_ms are at least 1")
        if not self.weights or min(self.weights.values()) < 1:
            raise UsageError("weights names each tenant with a whole number from 1 on")


class Sample(msgspec.Struct, frozen=True):
    """Bytes served since the beginning, and the last handout, at one moment."""

    at_s: float
    served: dict[str, int]
    demand: dict[str, int]
    tokens: dict[str, int]
    record: dict[str, int]


class Report(msgspec.Struct, frozen=True):
    config: Config
    samples: list[Sample]
    intervals: int
    skipped: int
    problems: list[str]


def read_config(path: Path) -> Config:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: {error}") from error


def read_report(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)
