"""RateLimit fields and problem documents, byte by byte."""

from __future__ import annotations

from typing import Any, cast

import pytest
from asgi_budget import WORLD, Budget

from bursar.api.ratelimit import Writer
from bursar.errors import Refused
from bursar.policy import parse
from bursar.resource.door import Resource

TENANT = '[resource.api.tenant]\nacme = { limit = "5/s" }\n'


def make_resource(text: str) -> Resource:
    return Resource(cast(Any, WORLD), Budget(), parse(text).resource("api"))


def write(writer: Writer, *numbers: Any) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in writer.write(*numbers)}


def test_the_fields_say_the_limit_over_its_window_and_what_is_left_until_when() -> None:
    assert write(Writer("api", 60), 100, 50, 29.2) == {
        "ratelimit-policy": '"api";q=100;w=60',
        "ratelimit": '"api";r=50;t=30',
    }


def test_what_is_not_known_is_not_said() -> None:
    assert write(Writer("api"), None, None, None) == {}
    assert write(Writer("api"), 100, None, 3.0) == {"ratelimit-policy": '"api";q=100'}
    assert write(Writer("api"), None, 7, None) == {"ratelimit": '"api";r=7'}


@pytest.mark.parametrize(
    ("head", "limit", "policy"),
    [
        ('kind = "rate"\nservers = { a = "9/s" }', 5, '"api";q=5;w=1'),
        ('kind = "rate"\nperiod = "10s"\nservers = { a = "9/s" }', 50, '"api";q=50;w=10'),
        ('kind = "rate"\nperiod = "200ms"\nservers = { a = "9/s" }', 1, '"api";q=5;w=1'),
        ('kind = "rate"\nperiod = "1500ms"\nservers = { a = "9/s" }', 6, '"api";q=8;w=2'),
        ('kind = "pool"\ncapacity = "9/s"\nperiod = "2s"', 10, '"api";q=10;w=2'),
    ],
)
def test_the_window_is_the_resources_period_in_whole_seconds(head: str, limit: int, policy: str) -> None:
    writer = Writer("api")
    writer.learn(make_resource(f"[resource.api]\n{head}\n{TENANT}"))
    assert write(writer, limit, None, None) == {"ratelimit-policy": policy}


@pytest.mark.parametrize(
    ("window", "shown"), [("hour", ";w=3600"), ("week", ";w=604800"), ("month", ""), ("none", "")]
)
def test_a_quotas_window_is_said_where_it_has_one_length(window: str, shown: str) -> None:
    head = f'[resource.api]\nkind = "quota"\nwindow = "{window}"\n'
    text = head + "[resource.api.tenant]\nacme = { limit = 9 }\n"
    writer = Writer("api")
    writer.learn(make_resource(text))
    assert write(writer, 9, None, None) == {"ratelimit-policy": f'"api";q=9{shown}'}


def test_a_window_that_was_given_wins() -> None:
    writer = Writer("api", 60)
    writer.learn(make_resource(f'[resource.api]\nkind = "rate"\nservers = {{ a = "9/s" }}\n{TENANT}'))
    assert write(writer, 9, None, None) == {"ratelimit-policy": '"api";q=9;w=60'}


def test_names_and_numbers_that_a_structured_field_cannot_hold_are_made_to_fit() -> None:
    fields = write(Writer('a"b\\c\u00e9\n'), 10**30, -1, None)
    assert fields == {
        "ratelimit-policy": '"a\\"b\\\\c__";q=999999999999999',
        "ratelimit": '"a\\"b\\\\c__";r=0',
    }


def test_a_refusal_says_when_to_come_back_only_if_that_can_be_promised() -> None:
    writer = Writer("api", 1)
    told = dict(writer.write_refusal(Refused("no", limit=5, remaining=0, retry_after=0.2)))
    assert told[b"retry-after"] == b"1" and told[b"ratelimit"] == b'"api";r=0;t=1'
    assert writer.write_refusal(Refused("no")) == []
