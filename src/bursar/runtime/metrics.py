"""/metrics and /health: a small HTTP server, bounded in size, time and number.

`/health` is 200 while the node is up and 503 when it is going down. `/metrics` is Prometheus text:
what every resource's `statistics()` says, and what the node counts. Numbers nested under "tenants"
or "servers" (or "tenant", "server") become labels, other nesting joins names:

    {"granted": 5, "tenants": {"acme": {"granted": 3}}}
    bursar_granted{resource="cache",kind="rate"} 5
    bursar_tenant_granted{resource="cache",kind="rate",tenant="acme"} 3
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from bursar.errors import NetworkError, UsageError
from bursar.policy.names import is_loopback
from bursar.runtime import logs
from bursar.runtime.routes import Address

if TYPE_CHECKING:
    from prometheus_client.metrics_core import GaugeMetricFamily

REQUEST_MAX_BYTES = 8 * 1024
REQUEST_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 64
NESTING_MAX = 6
LABELS = {"tenants": "tenant", "tenant": "tenant", "servers": "server", "server": "server"}

Answer = tuple[int, str, bytes]
Sample = tuple[str, dict[str, str], float]
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class HttpServer:
    """Answers GET for a few paths; every connection is closed after one answer."""

    def __init__(self, routes: Mapping[str, Callable[[], Answer]]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self._open = 0

    async def listen(self, address: str) -> Address:
        """Only on loopback: what is served is not encrypted, and names tenants."""
        wanted = Address.parse(address)
        if not is_loopback(address):
            raise UsageError(f"metrics are served on loopback only, not on {address}; put a proxy before it")
        try:
            self._server = await asyncio.start_server(
                self._answer, wanted.host, wanted.port, limit=REQUEST_MAX_BYTES
            )
        except OSError as error:
            raise NetworkError(
                f"cannot serve metrics on {wanted}: {error.strerror or error}; "
                "stop what listens there, or set another metrics under [daemon]"
            ) from error
        return Address(wanted.host, self._server.sockets[0].getsockname()[1])

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    status, form, body = self._route(await reader.readuntil(b"\r\n\r\n"))
                    writer.write(_head(status, form, len(body)) + body)
                    await writer.drain()
        except (
            TimeoutError,
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ) as error:
            logs.debug("http.cut", why=str(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001  a kind's faulty figures must not end the server
            logs.failure("http.failed", error)
            writer.write(_head(500, "text/plain", 0))
        finally:
            self._open -= 1
            writer.close()

    def _route(self, request: bytes) -> Answer:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
        if method not in (b"GET", b"HEAD"):
            return 405, "text/plain", b"only GET is answered\n"
        found = self._routes.get(path)
        if found is None:
            return 404, "text/plain", f"there is {', '.join(self._routes)}\n".encode()
        status, form, body = found()
        return status, form, b"" if method == b"HEAD" else body

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


def _head(status: int, form: str, size: int) -> bytes:
    return (
        f"HTTP/1.1 {status} {REASONS.get(status, '')}\r\nContent-Type: {form}\r\n"
        f"Content-Length: {size}\r\nConnection: close\r\n\r\n"
    ).encode()


def health_answer(up: bool, fields: Mapping[str, Any]) -> Answer:
    body = msgspec.json.encode({"status": "up" if up else "down", **fields}) + b"\n"
    return (200 if up else 503), "application/json", body


def flatten(statistics: Mapping[str, Any], labels: dict[str, str]) -> Iterable[Sample]:
    """The numbers of a snapshot, with a name and labels each. Texts are not metrics."""
    yield from _flatten(statistics, "bursar", labels, 0)


def _flatten(values: Mapping[str, Any], name: str, labels: dict[str, str], depth: int) -> Iterable[Sample]:
    for key, value in values.items():
        label = LABELS.get(str(key))
        if isinstance(value, Mapping) and depth < NESTING_MAX:
            if label is None:
                yield from _flatten(value, f"{name}_{_clean(key)}", labels, depth + 1)
                continue
            for item, nested in value.items():
                inner = {**labels, label: str(item)}
                if isinstance(nested, Mapping):
                    yield from _flatten(nested, f"{name}_{label}", inner, depth + 1)
                elif isinstance(nested, int | float):
                    yield f"{name}_{label}", inner, float(nested)
        elif isinstance(value, int | float):
            yield f"{name}_{_clean(key)}", labels, float(value)


def _clean(key: object) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", str(key))


def metrics_answer(collect: Callable[[], Iterable[Sample]]) -> Answer:
    """All samples as Prometheus text, through prometheus-client."""
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    except ModuleNotFoundError:
        return 501, "text/plain", b"/metrics needs prometheus-client: pip install 'bursar[metrics]'\n"
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(collect))
    return 200, CONTENT_TYPE_LATEST, generate_latest(registry)


class _Collector:
    """Hands samples to prometheus-client; samples of one name may differ in their labels."""

    def __init__(self, collect: Callable[[], Iterable[Sample]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[GaugeMetricFamily]:
        from prometheus_client.metrics_core import GaugeMetricFamily

        families: dict[str, GaugeMetricFamily] = {}
        for name, labels, value in self._collect():
            if name not in families:
                families[name] = GaugeMetricFamily(name, f"{name} as bursar reports it")
            families[name].add_sample(name, labels, value)
        return families.values()
