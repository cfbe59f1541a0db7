"""What a node serves over HTTP, and where: `[daemon] http`, if the packages for it are installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bursar.api.desk import Desk
from bursar.api.pages import Page
from bursar.errors import UsageError
from bursar.fleet.rights import NO_RIGHTS, Rights
from bursar.policy.names import is_loopback
from bursar.policy.values import HTTP, DaemonPolicy
from bursar.runtime import logs
from bursar.runtime.routes import Address
from bursar.runtime.token_files import read_token

if TYPE_CHECKING:
    from bursar.api.app import Application
    from bursar.runtime.http_listener import HttpListener


class Http:
    """Of one node. `pages` are answered from the first moment on, `/v1` once `open` brought a desk."""

    def __init__(
        self,
        settings: DaemonPolicy,
        pages: Mapping[str, Page],
        *,
        has_api: bool = True,
    ) -> None:
        self._settings = settings
        self._pages = pages
        self._has_api = has_api
        self._metrics_token = _read_token(settings.metrics_token_file)
        self._application: Application | None = None
        self._listener: HttpListener | None = None
        self._desk: Desk | None = None

    @property
    def counts(self) -> Counter[str]:
        return self._listener.counts if self._listener is not None else Counter()

    @property
    def desk(self) -> Desk | None:
        return self._desk

    async def listen(self) -> Address | None:
        """Where it answers; None if it is not to, or cannot and was not told where. Raises UsageError,
        NetworkError."""
        at = self._settings.http
        if at is None:
            return None
        try:
            from bursar.runtime.http_listener import HttpListener
        except ModuleNotFoundError as error:
            self._go_without(at, error)
            return None
        self._application = self._make_application(at)
        self._listener = HttpListener(self._application)
        return await self._listener.listen(at, None if is_loopback(at) else self._settings.tls)

    def _go_without(self, at: str, error: ModuleNotFoundError) -> None:
        package = error.name or ""
        if package.startswith("bursar"):
            raise error
        remedy = "pip install 'bursar[http]'"
        if at != HTTP:
            raise UsageError(
                f'http = "{at}" under [daemon] needs the package {package}: {remedy}, or set http to off'
            ) from error
        logs.warning("http.off", why=f"the package {package} is not installed", remedy=remedy)

    def _make_application(self, at: str) -> Application:
        from bursar.api.app import Application
        from bursar.api.gate import Gate

        # Pages alone tell nothing that a certificate would not do for.
        gate = Gate(Address.parse(at).host, is_loopback(at), None if self._has_api else NO_RIGHTS)
        return Application(
            gate, self._pages, _report, metrics_token=self._metrics_token, has_api=self._has_api
        )

    def open(self, desk: Desk, rights: Rights) -> None:
        """The resources are open."""
        if self._application is not None:
            self._application.gate.rights = rights
            self._desk = self._application.desk = desk
            desk.start()

    async def close(self) -> None:
        """Whoever waits is told so; nobody is answered after that."""
        if self._desk is not None:
            self._desk.close()
        if self._application is not None:
            self._application.desk = None
        if self._listener is not None:
            await self._listener.close()


def _read_token(path: str | None) -> str | None:
    return read_token(path) if path else None


def _report(error: BaseException, path: str) -> None:
    logs.failure("http.failed", error, path=path)
