"""`bursar serve`: a policy's resources, served to clients until told to stop.

SIGTERM and SIGINT stop it cleanly within two seconds. SIGHUP reads the policy file again: changed
resources take the change if their kind can; a file with problems is reported and changes nothing.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from bursar.errors import PolicyError
from bursar.policy import Policy, load
from bursar.resource.desk import Desk
from bursar.runtime import logs, metrics
from bursar.runtime.host import Host, read_token
from bursar.runtime.routes import Address

CLOSE_TIMEOUT_S = 1.8


class Daemon:
    """One node that serves clients. `reload_from` is the policy file for SIGHUP."""

    def __init__(self, host: Host, desk: Desk, reload_from: str | None) -> None:
        self.host = host
        self.desk = desk
        self.counts: Counter[str] = Counter()
        self.metrics_at: Address | None = None
        self._reload_from = reload_from
        self._http = metrics.HttpServer({"/health": self._health, "/metrics": self._metrics})
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()

    @classmethod
    async def open(cls, policy: Policy, reload_from: str | None = None) -> Daemon:
        token = read_token(policy.daemon.token_file) if policy.daemon.token_file else None
        host = await Host.open(policy, listen=policy.daemon.listen)
        daemon = cls(host, Desk(host.world, host.resources, token=token), reload_from)
        daemon.desk.start()
        try:
            if policy.daemon.metrics is not None:
                daemon.metrics_at = await daemon._http.listen(policy.daemon.metrics)
        except BaseException:
            await host.close()
            raise
        return daemon

    async def run(self) -> int:
        """Serve until stopped; the exit code: 0, or 1 if the node went down by itself."""
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], Any]] = {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
            signal.SIGHUP: self._reload.set,
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
        logs.info("daemon.stopped")
        if reload.done() and not reload.cancelled():
            reload.result()  # it never ends but by an error
        return 1 if failure.done() else 0

    def stop(self) -> None:
        self._stop.set()

    async def close(self) -> None:
        self._http.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.host.close()
        except TimeoutError:
            logs.warning("daemon.close_timeout", after_s=CLOSE_TIMEOUT_S)

    async def _keep_reloading(self) -> None:
        while True:
            await self._reload.wait()
            self._reload.clear()
            await self.reload()

    async def reload(self) -> None:
        """Read the policy file again, and take what changed."""
        if self._reload_from is None:
            logs.warning("policy.not_reloaded", why="this daemon was not started from a file")
            return
        try:
            policy = load(self._reload_from)
        except PolicyError as error:
            self.counts["reload_failed"] += 1
            logs.warning("policy.kept", why=str(error), remedy="correct the file, then send SIGHUP again")
            return
        for name, what in (await self.host.apply(policy)).items():
            logs.info("policy.applied", resource=name, outcome=what)
        self.counts["reloads"] += 1
        logs.info("policy.reloaded", source=policy.source)

    def _health(self) -> metrics.Answer:
        world = self.host.world
        fields = {
            "name": world.name,
            "incarnation": world.incarnation,
            "resources": {name: resource.kind for name, resource in self.host.resources.items()},
        }
        return metrics.health_answer(world.node.alive and not self._stop.is_set(), fields)

    def _metrics(self) -> metrics.Answer:
        return metrics.metrics_answer(self._collect)

    def _collect(self) -> Iterable[metrics.Sample]:
        yield "bursar_grants_held_by_clients", {}, float(self.desk.held)
        for prefix, counts in (
            ("bursar_network", self.host.world.sockets.counts),
            ("bursar_clients", self.desk.counts),
            ("bursar_daemon", self.counts),
        ):
            for key, value in counts.items():
                yield f"{prefix}_{key.replace('.', '_')}", {}, float(value)
        for name, resource in self.host.resources.items():
            yield from metrics.flatten(resource.statistics(), {"resource": name, "kind": resource.kind})


async def serve(policy: Policy, reload_from: str | None = None) -> int:
    """Serve a policy until stopped; returns the exit code. Raises BursarError if it cannot start."""
    daemon = await Daemon.open(policy, reload_from)
    world = daemon.host.world
    logs.info(
        "daemon.ready",
        name=world.name,
        address=str(world.listening),
        metrics=str(daemon.metrics_at or "off"),
        resources=",".join(daemon.host.resources),
    )
    return await daemon.run()
