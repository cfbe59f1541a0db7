"""What the proxy has counted, for Prometheus. Tenants are counted where the resource is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bursar.runtime.exposition import CONTENT_TYPE, Exposition

if TYPE_CHECKING:
    from bursar.integrations.memcached_proxy.proxy import Proxy

COUNTS = {
    "connections": "clients that connected",
    "turned_away": "clients for whom there was no place",
    "idle_ended": "clients that were cut off because they said nothing",
    "cut_off": "clients that were cut off for what they did, or at the end",
    "refused": "requests that were refused",
    "unknown": "requests whose quota could not be learnt",
    "strangers": "requests for keys of no tenant, or of several",
    "unreachable": "requests for which no connection to their server could be made",
    "lost": "requests whose server went away before it answered",
}


def write_metrics(proxy: Proxy) -> bytes:
    told = Exposition()
    told.add("bursar_memcached_connected", "gauge", "clients now", {}, proxy.connections)
    told.add("bursar_memcached_requests_total", "counter", "keys of requests passed on", {}, proxy.requests)
    for name, what in COUNTS.items():
        told.add(f"bursar_memcached_{name}_total", "counter", what, {}, proxy.counts[name])
    return b"".join(told.write())


def make_app(proxy: Proxy) -> Any:
    """An ASGI application that serves /metrics."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found = scope["path"] == "/metrics" and scope["method"] == "GET"
        body = write_metrics(proxy) if found else b"it is at /metrics\n"
        kind = CONTENT_TYPE if found else "text/plain; charset=utf-8"
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        status = 200 if found else 404
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app
