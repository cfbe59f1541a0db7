"""`bursar serve`: a policy's resources, served to clients until told to stop.

SIGTERM and SIGINT stop it cleanly within two seconds. SIGHUP reads the policy file again: changed
resources take the change if their kind can; a file with problems is reported and changes nothing.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

from bursar.errors import PolicyError, StoreError, UsageError
from bursar.fleet.register import Register
from bursar.policy import Policy, load
from bursar.resource.clients import Clients
from bursar.runtime import logs
from bursar.runtime.alerts import Alerts
from bursar.runtime.exposition import Exposition
from bursar.runtime.host import Host
from bursar.runtime.limits import raise_file_limit
from bursar.runtime.reports import Reports
from bursar.runtime.routes import Address
from bursar.runtime.token_files import read_token
from bursar.runtime.watch import Watch
from bursar.runtime.webhook import Webhook
from bursar.world import Task

CLOSE_TIMEOUT_S = 1.8
ENVOY = "bursar.integrations.envoy.service"
"""Has `open_for`: loaded where a daemon serves Envoys."""


class Daemon:
    """One node that serves clients. `reload_from` is the policy file for SIGHUP."""

    def __init__(self, host: Host, rights: Register, reports: Reports, reload_from: str | None) -> None:
        self.host = host
        self.rights = rights
        certified = host.world.sockets.certificates is not None
        self.clients = Clients(
            host.world, host.resources, rights=rights, certified=certified, nodes=host.nodes
        )
        self.counts: Counter[str] = Counter()
        self.http_at: Address | None = None
        self._reports = reports
        self._reload_from = reload_from
        self._alerts = Alerts(host.resources)
        self._webhook: Webhook | None = None
        self._posting: Task | None = None
        self._envoy: Any = None
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()

    @classmethod
    async def open(cls, policy: Policy, reload_from: str | None = None) -> Daemon:
        """Raises BursarError; then nothing is left open. Whether it lives can be asked at once, before
        its resources are open."""
        token = read_token(policy.daemon.token_file) if policy.daemon.token_file else None
        reports = Reports(policy)
        http_at = await reports.listen()
        host: Host | None = None
        try:
            host = await Host.open(policy, listen=policy.daemon.listen, http=str(http_at or ""))
            daemon = cls(host, await open_rights(host, token), reports, reload_from)
        except BaseException:
            await reports.close()
            if host is not None:
                await host.close()
            raise
        daemon.http_at = http_at
        try:
            await daemon._open_envoy()
        except BaseException:
            await daemon.close()
            raise
        daemon._start()
        return daemon

    @property
    def envoy_port(self) -> int:
        """Where Envoys ask; 0 if they cannot."""
        return 0 if self._envoy is None else int(self._envoy.port)

    async def _open_envoy(self) -> None:
        policy = self.host.policy
        if policy.daemon.envoy is None:
            return
        try:
            module = import_module(ENVOY)
        except ModuleNotFoundError as error:
            raise UsageError(f"daemon.envoy needs {error.name}: pip install 'bursar[envoy]'") from error
        world = self.host.world
        self._envoy = await module.open_for(
            policy.daemon.envoy,
            policy.daemon.tls,
            self.host.resources,
            lambda: self.host.policy,
            world.clock.now,
            self.rights,
        )
        self._reports.envoy = self._envoy.statistics

    def _start(self) -> None:
        self.clients.start()
        self._reports.open(self.host, self._describe, self.rights)
        self.host.world.spawn(Watch(self.host.resources, self._alerts).run(), "watch")
        self._set_alert(self.host.policy)
        self.host.taken = self._set_alert

    def _set_alert(self, policy: Policy) -> None:
        """Post alerts where the policy says now."""
        wanted = policy.alert
        if self._webhook is not None and wanted == self._webhook.policy:
            return
        if self._posting is not None:
            self._posting.cancel()
        self._webhook = open_webhook(policy)
        self._alerts.sink = self._webhook.put if self._webhook else None
        if self._webhook is not None:
            self._posting = self.host.world.spawn(self._webhook.run(), "webhook")

    async def run(self) -> int:
        """Serve until stopped; the exit code: 0, or 1 if the node went down by itself."""
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], Any]] = {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            signal.SIGHUP: self.reload_soon,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            return await self._serve()
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    async def _serve(self) -> int:
        loop = asyncio.get_running_loop()
        failure = self.host.world.failure
        stop = loop.create_task(self._stop.wait())
        reload = loop.create_task(self._keep_reloading())
        ends: list[asyncio.Future[Any]] = [stop, reload, failure]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in (stop, reload):
            task.cancel()
        logs.info("daemon.stopping", failed=failure.done())
        await self.close()
        if reload.done() and not reload.cancelled():
            reload.result()  # it never ends but by an error
        if failure.done():
            logs.warning("daemon.failed", why=str(failure.result()))
            return 1
        logs.info("daemon.stopped")
        return 0

    def reload_soon(self) -> None:
        self._reload.set()

    def stop(self) -> None:
        self._reports.stopping = True
        self._stop.set()

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._reports.close()
                if self._envoy is not None:
                    await self._envoy.close()
                await self.host.close()
        except TimeoutError:
            logs.warning("daemon.close_timeout", after_s=CLOSE_TIMEOUT_S)

    async def _keep_reloading(self) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            self.host.world.sockets.reload_certificates()
            await self.reload()

    async def reload(self) -> None:
        """Read the policy file again, and take what changed."""
        if self._reload_from is None:
            logs.warning("policy.not_reloaded", why="this daemon was not started from a file")
            return
        try:
            policy = load(self._reload_from)
        except PolicyError as error:
            self.counts["refused"] += 1
            logs.warning("policy.kept", why=str(error), remedy="correct the file, then send SIGHUP again")
            return
        before = self.host.policy
        if (policy.daemon, policy.store) != (before.daemon, before.store):
            logs.warning("policy.daemon_changed", remedy="restart to apply what changed in [daemon] or store")
        try:
            version = await self.host.membership.change(policy)
        except (UsageError, StoreError) as error:
            self.counts["refused"] += 1
            logs.warning("policy.kept", why=str(error), remedy="correct the file, then send SIGHUP again")
            return
        self.counts["taken"] += 1
        logs.info("policy.reloaded", source=policy.source, version=version.number if version else "unchanged")

    def _describe(self, text: Exposition) -> None:
        """What the node counts beside its resources."""
        network = self.host.world.sockets.counts
        envoy = self._envoy.counts if self._envoy is not None else {}
        for name, what, counts in (
            ("bursar_network_events_total", "what happened on its connections", network),
            ("bursar_clients_events_total", "what its clients were answered", self.clients.counts),
            ("bursar_policy_reloads_total", "policy files read again", self.counts),
            ("bursar_envoy_decisions_total", "answers to Envoys about requests", envoy),
            ("bursar_webhook_alerts_total", "alerts posted", self._webhook.counts if self._webhook else {}),
        ):
            for event, count in counts.items():
                text.add(name, "counter", what, {"event": event.replace(".", "_")}, count)
        record, view = self.host.membership.follower.record, self.host.membership.view
        runs = "the version of the policy that it runs"
        text.add("bursar_policy_version", "gauge", runs, {}, record.version)
        behind = "whether it could not take over the policy in force"
        text.add("bursar_policy_problem", "gauge", behind, {}, bool(record.problem))
        text.add("bursar_fleet_nodes", "gauge", "nodes of its fleet that are up", {}, len(view.up))
        held = "grants that clients have not given back"
        text.add("bursar_clients_grants", "gauge", held, {}, self.clients.held)
        for (alert, resource), count in self._alerts.counts.items():
            labels = {"alert": alert, "resource": resource}
            text.add("bursar_alerts_total", "counter", "alerts told", labels, count)
        dropped = "alerts not told, because there were very many"
        text.add("bursar_alerts_dropped_total", "counter", dropped, {}, self._alerts.dropped)


async def open_rights(host: Host, token: str | None) -> Register:
    """Nobody is let in before it is known who may do what."""
    rights = Register(host.world, token, logs.warning)
    await rights.open()
    rights.start()
    return rights


def open_webhook(policy: Policy) -> Webhook | None:
    if policy.alert is None:
        return None
    token = read_token(policy.alert.token_file) if policy.alert.token_file else None
    return Webhook(policy.alert, policy.daemon.name, token)


async def serve(policy: Policy, reload_from: str | None = None) -> int:
    """Serve a policy until stopped; returns the exit code. Raises BursarError if it cannot start."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, told.set)  # while it starts, too
    raise_file_limit()
    daemon = await Daemon.open(policy, reload_from)
    if told.is_set():
        daemon.reload_soon()
    # What was imported and read stays: going through it again in every full collection would take
    # tens of milliseconds, in which nobody is granted anything.
    gc.collect()
    gc.freeze()
    loop.call_soon(_tell_ready, daemon)  # once it listens to signals: whoever reads this may send one
    return await daemon.run()


def _tell_ready(daemon: Daemon) -> None:
    world = daemon.host.world
    logs.info(
        "daemon.ready",
        name=world.name,
        address=str(world.listening),
        http=str(daemon.http_at or "off"),
        resources=",".join(daemon.host.resources),
    )
