"""Words in a Redis server: many operations in one exchange, passwords, TLS, databases, and what is said of
a server that is gone or holds something else."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from bursar.errors import FormatError, NoAnswerError, UsageError
from bursar.runtime.redis_words import RedisWords
from bursar.world import WORD_MAX, Add, Read, Swap, Write
from bursar_lab.processes import find_free_port, run_redis

pytestmark = pytest.mark.needs("redis")
PASSWORD = "a secret"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("redis")
    with run_redis(str(folder), "--requirepass", PASSWORD) as plain:
        yield plain.replace("redis://", "redis://:a%20secret@")


@pytest.fixture
async def words(url: str) -> AsyncIterator[RedisWords]:
    opened = RedisWords(f"{url}/1")
    await opened._client.flushdb()
    yield opened
    await opened.close()


async def test_a_word_that_was_never_written_is_zero_and_arithmetic_wraps(words: RedisWords) -> None:
    steps = [Read("a"), Add("a", WORD_MAX), Add("a", 2), Read("a"), Write("a", 2**32 - 1)]
    more = [Add("a", 2**63 + 1), Read("a"), Read("b")]
    found = await words.perform([[*steps, *more]])
    assert found == [[0, 0, WORD_MAX, 1, 0, 2**32 - 1, 2**63 + 2**32, 0]]


async def test_a_group_ends_at_its_first_swap_that_fails_and_the_others_go_on(words: RedisWords) -> None:
    groups = [
        [Swap("a", 0, 7), Swap("a", 0, 9), Write("b", 1)],
        [Read("a"), Swap("a", 7, WORD_MAX), Read("a"), Read("b")],
    ]
    assert await words.perform(groups) == [[0, 7], [7, 7, WORD_MAX, 0]]


async def test_what_does_not_fit_a_word_is_refused(words: RedisWords) -> None:
    for wrong in (-1, 2**64):
        with pytest.raises(UsageError):
            await words.perform([[Write("a", wrong)]])


async def test_additions_of_many_at_once_are_exact(words: RedisWords) -> None:
    async def add() -> list[int]:
        return [(await words.perform([[Add("a", 1)]]))[0][0] for _ in range(50)]

    seen = [before for part in await asyncio.gather(*(add() for _ in range(8))) for before in part]
    assert sorted(seen) == list(range(400))


async def test_databases_are_apart_and_passwords_are_asked_for(url: str, words: RedisWords) -> None:
    await words.perform([[Write("a", 5)]])
    other = RedisWords(f"{url}/2")
    assert await other.perform([[Read("a")]]) == [[0]]
    await other.close()
    nameless = RedisWords(url.replace(":a%20secret@", ""))
    with pytest.raises(NoAnswerError, match="password"):
        await nameless.perform([[Read("a")]])
    await nameless.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext"
    out = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run([*command.split(), "subjectAltName=IP:127.0.0.1", *out], check=True, capture_output=True)
    return tmp_path / "cert.pem"


async def test_tls_is_spoken_and_the_certificate_is_checked(tmp_path: Path, certificate: Path) -> None:
    port, key = find_free_port(), tmp_path / "key.pem"
    files = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    more = ["--tls-port", str(port), "--tls-auth-clients", "no", *files]
    with run_redis(str(tmp_path), *more):
        trusting = RedisWords(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}")
        assert await trusting.perform([[Add("a", 1), Read("a")]]) == [[0, 1]]
        await trusting.close()
        strict = RedisWords(f"rediss://127.0.0.1:{port}")
        with pytest.raises(NoAnswerError, match="certificate"):
            await strict.perform([[Read("a")]])
        await strict.close()


async def test_garbage_and_a_server_that_is_gone_are_told_apart(words: RedisWords) -> None:
    await words._client.set("bursar:a", "not a word")
    for act in (Read("a"), Add("a", 1)):
        with pytest.raises(FormatError, match="delete the keys"):
            await words.perform([[act]])
    with pytest.raises(NoAnswerError, match="is the server running"):
        await RedisWords("redis://:hidden@127.0.0.1:1").perform([[Read("a")]])


def test_no_message_shows_a_password() -> None:
    assert "hidden" not in RedisWords("redis://me:hidden@127.0.0.1:1/0")._where
