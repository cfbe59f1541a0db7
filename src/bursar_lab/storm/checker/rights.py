"""Nobody is granted what its token does not allow.

**The promise.** A token has scopes: resources, tenants and verbs, each by pattern. What is in none of
them is denied. A token that was revoked is denied a second later; from the first token on, who shows none
is denied.

So: a grant to who showed a token without the right `acquire` for that resource and tenant is a breach, at
any time. So is one that was asked for more than a second after the token was told as revoked, or with no
token (`"token": ""`) more than a second after the first token was told as made. And who has the right is
not denied, from a second after its token was made.

**Left out.** Operations that do not say which token they showed. What was lent in place of bursar, by a
client that reached nobody. Where it matters what a node knows (a revoked or a new token), times within 15
s of a fault: a node that cannot reach the store cannot know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bursar_lab.storm.checker.breaches import Breach, make_breach
from bursar_lab.storm.checker.history import History
from bursar_lab.storm.checker.lines import ACQUIRING, Line
from bursar_lab.storm.checker.quantities import SECOND_NS

PROMISE = "rights"
KNOWN_NS = SECOND_NS
CALM_NS = 15 * SECOND_NS


@dataclass(frozen=True)
class Token:
    made: Line
    revoked: Line | None

    def allows(self, resource: str, tenant: str) -> bool:
        return any(_allows(scope, resource, tenant) for scope in self.made.scopes or ())


def _allows(scope: dict[str, list[str]], resource: str, tenant: str) -> bool:
    return (
        "acquire" in scope.get("verbs", ("acquire", "read"))
        and _matches(scope.get("resources", ["*"]), resource)
        and _matches(scope.get("tenants", ["*"]), tenant)
    )


def _matches(patterns: list[str], name: str) -> bool:
    """ "acme" is that one alone, "acme/*" all below it, "*" everything."""
    below = (pattern[:-1] for pattern in patterns if pattern.endswith("/*"))
    return (
        "*" in patterns or name in patterns or any(name.startswith(each) and name != each for each in below)
    )


def check(history: History) -> list[Breach]:
    tokens = _list_tokens(history)
    first = min((token.made.done_at for token in tokens.values() if token.made.ok), default=None)
    found: list[Breach] = []
    for op in history.operations:
        if op.op not in ACQUIRING or op.token is None or op.answer is None or not op.resource:
            continue
        history.judged[PROMISE] += 1
        if op.answer.is_ == "grant" and op.answer.fallback is None:
            found += _check_granted(history, op, tokens.get(op.token), first)
        elif op.answer.is_ == "denied":
            found += _check_denied(history, op, tokens.get(op.token))
    return found


def _list_tokens(history: History) -> dict[str, Token]:
    revoked = {line.token: line for line in reversed(history.lines_of("revoke"))}
    return {
        line.token: Token(line, revoked.get(line.token)) for line in history.lines_of("token") if line.token
    }


def _check_granted(history: History, op: Line, token: Token | None, first: int | None) -> Iterator[Breach]:
    asked = f"{op.amount or ''} of {op.resource} for {op.tenant}".strip()
    if token is None:
        if op.token == "" and first is not None and _is_known(history, first, op):
            yield make_breach(PROMISE, op.done_at, f"{asked} was granted to who showed no token", [op])
    elif not token.allows(op.resource or "", op.tenant or ""):
        sentence = f"{asked} was granted to token {op.token!r}, which has no right to it"
        yield make_breach(PROMISE, op.done_at, sentence, [token.made, op])
    elif token.revoked is not None and token.revoked.ok and _is_known(history, token.revoked.done_at, op):
        since_s = (op.at - token.revoked.done_at) / SECOND_NS
        sentence = f"{asked} was granted to token {op.token!r}, {since_s:.1f} s after it was revoked"
        yield make_breach(PROMISE, op.done_at, sentence, [token.revoked, op])


def _check_denied(history: History, op: Line, token: Token | None) -> Iterator[Breach]:
    if token is None or not token.made.ok or not token.allows(op.resource or "", op.tenant or ""):
        return
    revoking = token.revoked is not None and token.revoked.at <= op.done_at
    if not revoking and _is_known(history, token.made.done_at, op):
        sentence = (
            f"{op.op} of {op.resource} for {op.tenant} was denied to token {op.token!r}, which has the right"
        )
        yield make_breach(PROMISE, op.done_at, sentence, [token.made, op])


def _is_known(history: History, since: int, op: Line) -> bool:
    """Whether every node must know by then what was told as done."""
    troubled = history.troubles.spans.touch(max(since, op.at - CALM_NS), op.done_at)
    # What was changed during a fault is learnt of when that is over.
    return not troubled and op.at > since + KNOWN_NS + history.stood.overlap(since, op.at)
