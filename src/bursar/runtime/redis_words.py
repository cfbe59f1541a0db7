"""Shared words over TCP: a Redis server keeps them, for clients on several hosts.

Redis runs one script at a time, so all operations that are sent together are one step for everybody else.
Its own counters are signed, so additions are made on two halves of a word, in the script.

A failure to reach the server is a NetworkError: the operations may or may not have happened. For a
pool that is safe, since a token whose fate is unknown counts as spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from bursar.errors import FormatError, NoAnswerError, UsageError
from bursar.policy.names import WORDS_FORM
from bursar.resource.checks import check_name
from bursar.world import WORD_MAX, Add, Read, Swap, WordOperation, Write

PREFIX = "bursar:"
TIMEOUT_S = 2.0

# A word is kept as 16 hexadecimal digits: Lua's numbers hold 53 bits, so it is added in halves. For each
# key: which group it belongs to, what to do, and with what. A group ends at a swap that fails.
_SCRIPT = """
local function add(before, amount)
  local low = tonumber(string.sub(before, 9), 16) + tonumber(string.sub(amount, 9), 16)
  local high = tonumber(string.sub(before, 1, 8), 16) + tonumber(string.sub(amount, 1, 8), 16)
  if low >= 4294967296 then low = low - 4294967296; high = high + 1 end
  if high >= 4294967296 then high = high - 4294967296 end
  return string.format('%08x%08x', high, low)
end
local answers, ended = {}, ''
for i, key in ipairs(KEYS) do
  local group, act, one, two = ARGV[4 * i - 3], ARGV[4 * i - 2], ARGV[4 * i - 1], ARGV[4 * i]
  if group == ended then
    answers[i] = ''
  else
    local before = redis.call('GET', key) or '0000000000000000'
    if #before ~= 16 then return redis.error_reply('not a word: ' .. key) end
    if act == 'w' then redis.call('SET', key, one)
    elseif act == 'a' then redis.call('SET', key, add(before, one))
    elseif act == 's' and before == one then redis.call('SET', key, two)
    elseif act == 's' then ended = group end
    answers[i] = before
  end
end
return answers
"""


class RedisWords:
    """Implements `bursar.world.FarWords`. It connects at the first use, in the event loop that uses it."""

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """The words at "redis://user:password@host:port/database", or at "rediss://" with TLS. Further
        settings are those of the redis package: "?ssl_ca_certs=/etc/ca.pem"."""
        self._where = _show(url)
        try:
            import redis.asyncio
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
        except ModuleNotFoundError as error:
            raise UsageError("words in Redis need its package: pip install 'bursar[redis]'") from error
        try:
            # No retries: an addition that was sent twice would be made twice.
            self._client: Any = redis.asyncio.Redis.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
            )
        except (ValueError, TypeError) as error:
            raise UsageError(f"{self._where}: {error}; write {WORDS_FORM}") from error
        self._errors = (redis.ConnectionError, redis.TimeoutError, OSError)
        self._wrong = redis.ResponseError
        self._script = self._client.register_script(_SCRIPT)

    async def perform(self, groups: Sequence[Sequence[WordOperation]]) -> list[list[int]]:
        keys = [_key(operation.word) for group in groups for operation in group]
        arguments = [
            argument
            for number, group in enumerate(groups)
            for operation in group
            for argument in (str(number), *_encode(operation))
        ]
        answers = iter(await self._ask(keys, arguments))
        return [_decode(group, [next(answers) for _ in group]) for group in groups]

    async def _ask(self, keys: list[str], arguments: list[str]) -> list[str]:
        try:
            answers: list[str] = await self._script(keys=keys, args=arguments)
        except self._errors as error:
            raise NoAnswerError(
                f"{self._where}: {error}; is the server running, and the password right?"
            ) from error
        except self._wrong as error:
            raise FormatError(
                f"{self._where} did not take it: {error}; if it holds something else than words, delete "
                f"the keys {PREFIX}*"
            ) from error
        return answers

    async def close(self) -> None:
        await self._client.aclose()


def _show(url: str) -> str:
    """Where it is, without the password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{unquote(parts.netloc.rpartition('@')[2])}{parts.path}"


def _key(name: str) -> str:
    check_name("word", name)
    return PREFIX + name


def _encode(operation: WordOperation) -> tuple[str, str, str]:
    match operation:
        case Read():
            return "r", "", ""
        case Write(_, value):
            return "w", _write(value), ""
        case Add(_, amount):
            return "a", _write(amount & WORD_MAX), ""
        case Swap(_, expected, value):
            return "s", _write(expected), _write(value)


def _decode(group: Sequence[WordOperation], answers: Sequence[str]) -> list[int]:
    """What came back of those operations of a group that were done."""
    return [
        0 if isinstance(operation, Write) else read_word(answer, operation.word)
        for operation, answer in zip(group, answers, strict=True)
        if answer
    ]


def _write(value: int) -> str:
    if not 0 <= value <= WORD_MAX:
        raise UsageError(f"a word holds 0 to 2^64 - 1, not {value}")
    return f"{value:016x}"


def read_word(text: str, name: str) -> int:
    try:
        return int(text, 16)
    except ValueError as error:
        raise FormatError(
            f"word {name!r} holds {text[:40]!r}, which is not one; delete the keys {PREFIX}*"
        ) from error
