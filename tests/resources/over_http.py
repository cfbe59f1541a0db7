"""The front door over HTTP: what a client without Python sees, with the face of the others."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
from tests.resources.places import Caller

import bursar
from bursar.errors import BursarError, DeniedError, Refused, Unknown, UsageError

JSON = {"Content-Type": "application/json"}


def read_problem(answer: httpx.Response) -> BursarError:
    """The error that a problem document is."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    found = answer.json()
    assert found["status"] == answer.status_code and found["title"] and found["type"]
    why, reason = found["detail"], found["reason"]
    if reason in ("limit", "amount", "tenant", "unpaid"):
        numbers = {name: found[name] for name in ("limit", "remaining", "retry_after")}
        assert answer.status_code == {"limit": 429, "tenant": 403}.get(reason, 422)
        assert ("retry-after" in answer.headers) == (numbers["retry_after"] is not None)
        return Refused(why, reason=reason, **numbers)
    if answer.status_code == 503:
        assert int(answer.headers["retry-after"]) > 0
        return Unknown(why)
    if answer.status_code == 403:
        return DeniedError(why)
    assert answer.status_code in (400, 404, 409, 412, 422), answer.text
    return UsageError(why)


class HttpCaller(Caller):
    """`b` is the HTTP client."""

    @property
    def has_lots(self) -> bool:
        return False

    async def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """What is answered, as a namespace. Raises what a problem says."""
        content = None if body is None else json.dumps(body)
        headers = JSON if body is not None else {}
        answer = await self.b.request(method, f"/v1{path}", content=content, headers=headers, params=query)
        if answer.status_code >= 400:
            raise read_problem(answer)
        if not answer.content:
            return None
        found = answer.json()
        if "fence" in found:
            found["fence"] = {name: int(phase) for name, phase in found["fence"].items()}
        return SimpleNamespace(**found)

    async def acquire(self, kind: str, amount: int = 1, *, tenant: str = "acme", **terms: Any) -> Any:
        if kind == "claim":
            body = {"names": [f"thing-{number}:E" for number in range(amount)], "tenant": tenant}
            return await self.ask("POST", f"/resources/{kind}/claims", {**body, **terms})
        return await self.ask(
            "POST", f"/resources/{kind}/grants", {"tenant": tenant, "amount": amount, **terms}
        )

    async def release(self, grant: Any) -> None:
        await self.ask("DELETE", f"/grants/{grant.id}")

    async def settle(self, grant: Any, used: int) -> None:
        await self.ask("POST", f"/grants/{grant.id}/settle", {"used": used})

    async def spend(self, grant: Any, tokens: int) -> None:
        used = (grant.used or 0) + tokens
        answer = await self.ask("POST", f"/grants/{grant.id}/spend", {"used": used})
        grant.used, grant.amount = answer.used, answer.amount

    async def extend(self, grant: Any, hold: float) -> None:
        await self.ask("POST", f"/grants/{grant.id}/extend", {"hold": hold})

    async def fail(self, grant: Any) -> None:
        await self.settle(grant, 0)

    async def statistics(self, kind: str) -> bursar.Statistics:
        answer = await self.b.get(f"/v1/resources/{kind}/statistics")
        return msgspec.json.decode(answer.content, type=bursar.Statistics)

    async def explain(self, kind: str, tenant: str = "acme") -> bursar.Explanation:
        answer = await self.b.get(f"/v1/resources/{kind}/explanation", params={"tenant": tenant})
        return msgspec.json.decode(answer.content, type=bursar.Explanation)
