"""`python -m bursar_lab.storage CONFIG.json`: one storage target, until SIGTERM.

Prints one line when it is ready. When it ends it writes its report: what each tenant was served in
each sample, and, in mode `share`, what it demanded, was given and owed."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import msgspec

from bursar.errors import BursarError
from bursar.runtime import logs
from bursar.runtime.world import LiveWorld, open_world
from bursar.shares.book import TargetBook
from bursar.shares.handout import TenantTerms
from bursar.shares.target import Target
from bursar.units import Rate, write_size
from bursar.world import MILLISECOND_NS, SECOND_NS
from bursar_lab.storage.config import Config, Report, Sample, read_config
from bursar_lab.storage.device import Device
from bursar_lab.storage.server import Scheduler, StorageServer


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m bursar_lab.storage CONFIG.json", file=sys.stderr)
        return 2
    try:
        config = read_config(Path(sys.argv[1]))
        report = asyncio.run(serve(config))
        Path(config.report).write_bytes(msgspec.json.encode(report))
    except BursarError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


async def serve(config: Config) -> Report:
    """Run one target until it is told to end, and report."""
    logs.configure(level="warning")
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    scheduler = Scheduler(eager=config.eager and config.mode == "share")
    device = Device(Path(config.directory), config.rate_bytes)
    server = StorageServer(Path(config.socket), device, scheduler, config.threads)
    world = await open_world("storage")
    world.failure.add_done_callback(lambda _: ended.set())
    target = start_target(world, config, scheduler)
    samples: list[Sample] = []
    world.spawn(take_samples(world, config, scheduler, target, samples), "samples")
    server.start()
    print(f"ready: {describe(config)}", flush=True)
    await ended.wait()
    if target is not None:
        await target.stop()
    server.close()
    await world.close()
    if world.failure.done():
        raise BursarError(f"the loop failed: {world.failure.result()}")
    return make_report(config, target, samples)


def start_target(world: LiveWorld, config: Config, scheduler: Scheduler) -> Target | None:
    if config.mode == "static":
        scheduler.hold(config.weights, config.rate_bytes)
    if config.mode != "share":
        return None
    tenants = {name: TenantTerms(weight) for name, weight in config.weights.items()}
    capacity = Rate.of(config.rate_bytes, "bytes")
    book = TargetBook(
        tenants, capacity, config.interval_ms * MILLISECOND_NS, needed_first=config.needed_first
    )
    target = Target(world, "storage", book, scheduler)
    target.start()
    return target


async def take_samples(
    world: LiveWorld, config: Config, scheduler: Scheduler, target: Target | None, samples: list[Sample]
) -> None:
    """What was served up to each moment, `sample_ms` apart."""
    began = due_at = world.clock.now()
    while True:
        lines = target.book.handout.lines if target else {}
        samples.append(
            Sample(
                at_s=(world.clock.now() - began) / SECOND_NS,
                served=dict(scheduler.served),
                demand={name: line.demand for name, line in lines.items()},
                tokens={name: line.final for name, line in lines.items()},
                record=target.book.records() if target else {},
            )
        )
        due_at += config.sample_ms * MILLISECOND_NS
        await world.clock.sleep(due_at - world.clock.now())


def describe(config: Config) -> str:
    return (
        f"device {write_size(config.rate_bytes)}/s, {config.threads} I/O threads, mode {config.mode}, "
        f"interval {config.interval_ms} ms, files in {config.directory}"
    )


def make_report(config: Config, target: Target | None, samples: list[Sample]) -> Report:
    if target is None:
        return Report(config, samples, 0, 0, [])
    progress = target.progress
    return Report(config, samples, progress.intervals, progress.skipped, list(progress.problems))


if __name__ == "__main__":
    sys.exit(main())
