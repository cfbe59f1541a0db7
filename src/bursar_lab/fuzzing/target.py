"""What is fuzzed: a parser, its refusals, and where its inputs come from."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from bursar.errors import BursarError, UsageError

CORPUS = Path(__file__).parent / "corpus"
INPUT_MAX_BYTES = 4096
INPUT_MAX_S = 1.0
"""No input may take longer; a hang is one that takes ten times as long."""

AREAS = (
    "policy",
    "wire",
    "http",
    "memcached",
    "envoy",
    "engines",
    "journals",
    "records",
    "machines",
    "lab",
)


@dataclass(frozen=True)
class Target:
    """parts: whose lines are counted, as "module", "module:name" (a function or class of it) or
    "module:-name" (all but that, wherever it stands). run: raises one of `refusals`, or nothing.
    seeds: inputs of our own writers, right ones and wrong ones. words: for the dictionary."""

    name: str
    parts: tuple[str, ...]
    run: Callable[[bytes], Any]
    seeds: Callable[[], Iterable[bytes]]
    refusals: tuple[type[Exception], ...] = (BursarError,)
    words: tuple[bytes, ...] = ()
    input_max_bytes: int = INPUT_MAX_BYTES

    @property
    def corpus(self) -> Path:
        return CORPUS / f"{self.name}.txt"

    def kept(self) -> list[bytes]:
        """The inputs in the repository, one a line, as Python writes bytes."""
        if not self.corpus.exists():
            return []
        return [ast.literal_eval(line) for line in self.corpus.read_text("ascii").splitlines()]

    def keep(self, inputs: Iterable[bytes]) -> None:
        self.corpus.write_text("".join(f"{each!r}\n" for each in inputs), "ascii")

    def inputs(self) -> list[bytes]:
        """Those that are kept, and what the writers write now."""
        return list(dict.fromkeys([*self.kept(), *self.seeds()]))

    def try_one(self, data: bytes) -> Exception | None:
        """The fault that an input brings to light."""
        try:
            self.run(data)
        except self.refusals:
            return None
        except Exception as error:  # noqa: BLE001  this is what is looked for
            return error
        return None


def load_targets(names: Sequence[str] = ()) -> list[Target]:
    """All of them, or those named. A target's name begins with its area's, whose module alone is loaded."""
    areas = dict.fromkeys(name.partition("-")[0] for name in names) or dict.fromkeys(AREAS)
    found = [target for area in areas if area in AREAS for target in _load_area(area)]
    wrong = set(names) - {target.name for target in found}
    if wrong:
        known = ", ".join(target.name for target in load_targets())
        raise UsageError(f"there is no target {', '.join(sorted(wrong))}; there are: {known}")
    return [target for target in found if not names or target.name in names]


def _load_area(area: str) -> tuple[Target, ...]:
    found: tuple[Target, ...] = import_module(f"bursar_lab.fuzzing.targets.{area}").TARGETS
    return found
