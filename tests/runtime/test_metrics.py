"""/metrics and /health: what they say, and that no request can hurt."""

from __future__ import annotations

import asyncio
import sys

import pytest

from bursar.errors import UsageError
from bursar.runtime import metrics


def test_statistics_become_samples_with_labels() -> None:
    statistics = {
        "granted": 5,
        "unit": "requests",
        "shadow": True,
        "store": {"lag-ms": 1.5},
        "tenants": {"acme": {"granted": 3, "servers": {"a": {"granted": 2}}}},
        "servers": {"b": 7},
    }
    found = list(metrics.flatten(statistics, {"resource": "cache"}))
    assert found == [
        ("bursar_granted", {"resource": "cache"}, 5.0),
        ("bursar_shadow", {"resource": "cache"}, 1.0),
        ("bursar_store_lag_ms", {"resource": "cache"}, 1.5),
        ("bursar_tenant_granted", {"resource": "cache", "tenant": "acme"}, 3.0),
        ("bursar_tenant_server_granted", {"resource": "cache", "tenant": "acme", "server": "a"}, 2.0),
        ("bursar_server", {"resource": "cache", "server": "b"}, 7.0),
    ]


def test_the_text_is_what_prometheus_reads() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    samples = [("bursar_x", {"tenant": 'a"b\\c\n'}, 2.0), ("bursar_x", {}, 1.0)]
    status, form, body = metrics.metrics_answer(lambda: samples)
    assert status == 200
    assert form.startswith("text/plain")
    (family,) = text_string_to_metric_families(body.decode())
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"tenant": 'a"b\\c\n'}, 2.0),
        ({}, 1.0),
    ]


def test_without_prometheus_client_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status, _, body = metrics.metrics_answer(list)
    assert status == 501
    assert b"pip install 'bursar[metrics]'" in body


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_only_whole_small_get_requests_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "REQUEST_TIMEOUT_S", 0.2)
    server = metrics.HttpServer({"/health": lambda: metrics.health_answer(True, {"name": "a"})})
    port = (await server.listen("127.0.0.1:0")).port
    fine = await ask(port, b"GET /health?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert fine.startswith(b"HTTP/1.1 200 OK\r\n")
    assert fine.endswith(b'{"status":"up","name":"a"}\n')
    assert (await ask(port, b"HEAD /health HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
    assert b"405" in await ask(port, b"POST /health HTTP/1.1\r\n\r\n")
    assert b"404" in await ask(port, b"GET /\xff HTTP/1.1\r\n\r\n")
    assert await ask(port, b"x" * 50_000) == b""
    assert await ask(port, b"GET /health HTTP/1.1\r\n") == b""
    server.close()


async def test_metrics_stay_on_loopback() -> None:
    with pytest.raises(UsageError, match="loopback only"):
        await metrics.HttpServer({}).listen("0.0.0.0:0")
