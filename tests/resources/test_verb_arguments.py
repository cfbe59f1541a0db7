"""What a verb is given comes over the wire: wrong arguments are the caller's mistake, for every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.policy import parse
from bursar.runtime.daemon import Daemon

POLICY = """
[resource.llm]
kind = "quota"
tenant = {{ acme = {{ limit = 10 }} }}
[resource.vm]
kind = "claim"
[daemon]
listen = "127.0.0.1:0"
http = "off"
state = "{state}"
"""

WRONG: list[tuple[str, str, dict[str, Any], str]] = [
    ("llm", "top_up", {"tenant": "acme", "amount": 1}, "top_up"),
    ("llm", "top_up", {"account": "acme"}, "amount"),
    ("llm", "survey", {"after": "x"}, "after must be a whole number"),
    ("llm", "usage", {"tenant": 5}, "tenant must be a text"),
    ("llm", "list_tenants", {"pages": 1}, "pages"),
    ("vm", "why", {}, "id"),
]


async def test_a_verb_given_wrong_arguments_says_so_and_nothing_is_logged_as_a_mistake_of_ours(
    tmp_path: Path,
) -> None:
    daemon = await Daemon.open(parse(POLICY.format(state=tmp_path / "state")))
    client = await bursar.connect(f"bursar://{daemon.host.world.listening}")
    try:
        for name, verb, arguments, said in WRONG:
            for door in (daemon.host.resources[name], client.resource(name)):
                with pytest.raises(bursar.UsageError, match=said):
                    await door.verb(verb, **arguments)
        assert not daemon.host.world.sockets.counts["handler.failed"]
    finally:
        await client.close()
        await daemon.close()
