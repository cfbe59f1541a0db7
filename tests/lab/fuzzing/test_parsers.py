"""Every parser over the inputs that are kept, and those that our writers make: no faults, nearly every line.

What was a fault once is among them: break the mend, and the target that found it fails here. `bursar fuzz`
looks for more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bursar_lab.fuzzing.campaign import REACHED_MIN_PERCENT
from bursar_lab.fuzzing.house import close_daemon
from bursar_lab.fuzzing.reached import Reached
from bursar_lab.fuzzing.target import INPUT_MAX_S, Target, load_targets

TARGETS = load_targets()
OPENING_S = 20.0
"""The first input of some opens a daemon, and compiles."""


@pytest.fixture(scope="module", autouse=True)
def daemon() -> Iterator[None]:
    yield
    close_daemon()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_parser_refuses_in_words_of_its_own(target: Target) -> None:
    reached, slowest = Reached(target.parts), 0.0
    for number, data in enumerate(target.inputs()):
        began = time.process_time()
        error = reached.watch(target, data)
        took = time.process_time() - began
        assert error is None, f"{target.name} {data!r}: {error!r}"
        slowest = max(slowest, took if number else took - OPENING_S)
    assert slowest < INPUT_MAX_S
    assert reached.percent >= REACHED_MIN_PERCENT, f"{target.name} misses {reached.missed()}"


def test_every_target_has_a_kept_corpus_that_is_small() -> None:
    for target in TARGETS:
        assert 1 <= len(target.kept()) <= 150, target.name
        assert target.corpus.stat().st_size <= 128 * 1024, target.name
