"""What counts as a backlog, and as news."""

from __future__ import annotations

import numpy as np

from bursar.rates.observation import Observation, is_news
from bursar.rates.scheduler import Whole
from bursar.world import MILLISECOND_NS

SPAN_NS = 200 * MILLISECOND_NS


def watch(*empty_ms: tuple[int, int], pending: int = 5) -> bool:
    """Whether a queue that was empty in these spans counts as backlogged after 200 ms."""
    observed = Observation(1)
    observed.reset(0, [pending])
    for from_ms, to_ms in empty_ms:
        observed.ran_empty(0, from_ms * MILLISECOND_NS)
        observed.began_to_wait(0, to_ms * MILLISECOND_NS)
    return observed.was_backlogged(0, SPAN_NS)


def test_a_queue_that_was_never_empty_is_a_backlog() -> None:
    assert watch()


def test_a_queue_emptied_for_moments_is_a_backlog_still() -> None:
    """Five requests outstanding that all go at once come back a millisecond later."""
    assert watch(*((at, at + 1) for at in range(0, 200, 20)))


def test_a_queue_that_was_often_empty_is_none() -> None:
    assert not watch((10, 40))
    assert not watch(pending=0)
    assert not watch((0, 15), (100, 115))


def test_a_queue_that_is_still_empty_counts_until_now() -> None:
    observed = Observation(1)
    observed.reset(0, [1])
    observed.ran_empty(0, SPAN_NS // 2)
    assert observed.was_backlogged(0, SPAN_NS // 2)
    assert not observed.was_backlogged(0, SPAN_NS)
    observed.reset(SPAN_NS, [0])
    observed.began_to_wait(0, SPAN_NS + MILLISECOND_NS)
    assert observed.was_backlogged(0, 2 * SPAN_NS), "what was before the last report is forgotten"


def tell(*row: int) -> Whole:
    """The columns of a report on one tenant."""
    return np.array([*row, 0, 0], np.int64)[:, None]


def test_only_what_moved_beyond_the_threshold_is_news() -> None:
    told = tell(0, 100, 50, 5, 50, True)
    assert is_news(None, told)
    assert not is_news(told, told)
    assert not is_news(told, tell(0, 100, 51, 5, 52, True))
    assert is_news(told, tell(0, 100, 60, 5, 50, True))
    assert is_news(told, tell(0, 99, 50, 5, 50, True))
    assert is_news(told, tell(0, 100, 50, 5, 50, False))
    assert is_news(told, tell(1, 100, 50, 5, 50, True)), "of another tenant"
    assert is_news(told, told[:, :0])
