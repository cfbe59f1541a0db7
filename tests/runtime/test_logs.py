"""Logs: what is written, and that a peer's words cannot forge a line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from bursar.errors import UsageError
from bursar.runtime import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    logger = logging.getLogger("bursar")
    before = logger.handlers[:], logger.level, logger.propagate
    yield io.StringIO()
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_json_has_time_level_event_fields_and_traceback(stream: io.StringIO) -> None:
    logs.configure("json", "info", stream)
    logs.info("peer.connected", peer="b", count=3)
    logs.debug("not.written")
    try:
        raise ZeroDivisionError("why")
    except ZeroDivisionError as error:
        logs.failure("node.down", error, node="a")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("at").endswith("Z")
    assert first == {"level": "info", "event": "peer.connected", "peer": "b", "count": 3}
    assert second["error"] == "ZeroDivisionError('why')"
    assert "Traceback" in second["traceback"]


def test_text_cannot_be_forged_by_what_a_peer_says(stream: io.StringIO) -> None:
    logs.configure("text", "debug", stream)
    logs.debug("peer.cut", why="x\n00:00:00.000 info forged \x1b[31m", peer="plain", empty="")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert "\x1b" not in lines[0]
    assert lines[0].endswith("peer=plain empty=''")


@pytest.mark.parametrize(("form", "level"), [("xml", "info"), ("json", "loud")])
def test_other_forms_and_levels_are_refused_with_those_there_are(form: str, level: str) -> None:
    with pytest.raises(UsageError, match="text or json at one of debug, info, warning, error"):
        logs.configure(form, level)
