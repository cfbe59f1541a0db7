"""A headless Chromium, spoken to through its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
]
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
POLL_S = 0.1


class Tab:
    """One page. `requests` are the addresses that it asked for."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._count = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        self._connection.send(json.dumps({"id": self._count, "method": method, "params": params}))
        ends_at = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < ends_at:
            message = json.loads(self._connection.recv(timeout=ANSWER_TIMEOUT_S))
            if message.get("id") == self._count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                answer: dict[str, Any] = message["result"]
                return answer
            self._note(message)
        raise TimeoutError(f"{method} was not answered within {ANSWER_TIMEOUT_S:g} s")

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]["exceptionDetails"])[:500])

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        """The value of an expression on the page, which must be plain data."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script[:200]}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, script: str, timeout_s: float = 40.0) -> Any:
        """Evaluate until it is true."""
        ends_at = time.monotonic() + timeout_s
        while time.monotonic() < ends_at:
            value = self.evaluate(script)
            if value:
                return value
            time.sleep(POLL_S)
        raise TimeoutError(f"not true within {timeout_s:g} s: {script}")

    def press(self, key: str) -> None:
        code = f"Digit{key}" if key.isdigit() else f"Key{key.upper()}"
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=code, text=key if kind == "keyDown" else ""
            )

    def resize(self, width: int, height: int, scale: float = 1.0, mobile: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=mobile,
        )

    def prefer(self, scheme: str) -> None:
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path, *, whole: bool = True) -> None:
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))


@contextmanager
def browse() -> Iterator[Tab]:
    """A browser of its own, with a profile of its own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="bursar-browser-", ignore_cleanup_errors=True) as profile:
        command = ["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            port = _wait_for_port(process, Path(profile) / "DevToolsActivePort")
            with connect(_find_page(port), max_size=None) as connection:
                yield Tab(connection)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)


def _wait_for_port(process: subprocess.Popen[bytes], file: Path) -> int:
    ends_at = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends_at:
        if process.poll() is not None:
            raise RuntimeError(f"chromium ended with {process.returncode}")
        if file.exists() and file.read_text().strip():
            return int(file.read_text().splitlines()[0])
        time.sleep(POLL_S)
    raise TimeoutError(f"chromium did not start within {START_TIMEOUT_S:g} s")


def _find_page(port: int) -> str:
    ends_at = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < ends_at:
        with urlopen(f"http://127.0.0.1:{port}/json", timeout=10) as answer:
            pages = [target for target in json.load(answer) if target["type"] == "page"]
        if pages:
            return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(POLL_S)
    raise TimeoutError("chromium has no page")
