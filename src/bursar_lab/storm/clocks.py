"""A node's clocks: the wall clock turned while it runs, all of them fast or slow. A few lines of C in the
place of the C library's.

Only the wall clock is turned (clock_gettime of CLOCK_REALTIME, gettimeofday, time), by a number of
nanoseconds in a file that the process maps: the monotonic clocks are those that the promises are made
by. Those drift, by millionths, from where they stood when the process began: that much is allowed to any
clock, and kernel waits that end at a time of theirs are off by no more than it. libfaketime can turn a
clock too, but a daemon under it takes five times as long to start, because every question is answered
through its file.
"""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

VARIABLE = "BURSAR_STORM_CLOCK"
DRIFT_VARIABLE = "BURSAR_STORM_DRIFT_PPM"
NANOS = 1_000_000_000

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *turned_by;
static int64_t drift_ppm, began_ns;

static int64_t read_ns(const struct timespec *at) {
    return (int64_t)at->tv_sec * 1000000000 + at->tv_nsec;
}

static void write_ns(struct timespec *at, int64_t whole) {
    at->tv_sec = whole / 1000000000;
    at->tv_nsec = whole % 1000000000;
}

static int64_t find_ahead(void) {
    struct timespec now;
    if (!drift_ppm || syscall(SYS_clock_gettime, CLOCK_BOOTTIME, &now)) return 0;
    return (read_ns(&now) - began_ns) / 1000000 * drift_ppm;
}

__attribute__((constructor)) static void open_clock(void) {
    const char *drift = getenv("BURSAR_STORM_DRIFT_PPM");
    struct timespec now;
    if (drift && !syscall(SYS_clock_gettime, CLOCK_BOOTTIME, &now)) {
        began_ns = read_ns(&now);
        drift_ppm = atoll(drift);
    }
    const char *path = getenv("BURSAR_STORM_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) turned_by = found;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (failed) return failed;
    int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int steady = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ||
                 clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME;
    if (wall || steady) write_ns(at, read_ns(at) + find_ahead() + (wall && turned_by ? *turned_by : 0));
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    at->tv_sec = found.tv_sec;
    at->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (at) *at = found.tv_sec;
    return found.tv_sec;
}
"""


@functools.cache
def can_turn() -> bool:
    """Whether there is a C compiler here that makes it."""
    if shutil.which("cc") is None:
        return False
    with tempfile.TemporaryDirectory(prefix="bursar-clock-") as folder:
        return build(Path(folder)) is not None


def build(folder: Path) -> Path | None:
    """The library to be loaded before the others; None if it cannot be made."""
    library, source = folder / "clock.so", folder / "clock.c"
    if library.exists():
        return library
    source.write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    made = subprocess.run(command, capture_output=True)
    return library if made.returncode == 0 else None


def turn(clock: Path, by_s: float) -> None:
    """In place: the process has it mapped."""
    with clock.open("r+b" if clock.exists() else "wb") as file:
        file.write(struct.pack("=q", int(by_s * NANOS)))


def list_settings(folder: Path, clock: Path, drift_ppm: int = 0) -> list[str]:
    """What a process under a turned or drifting clock has in its environment."""
    library = build(folder)
    assert library is not None, "plans turn no clock where it cannot be done"
    drift = [f"{DRIFT_VARIABLE}={drift_ppm}"] if drift_ppm else []
    return [f"LD_PRELOAD={library}", f"{VARIABLE}={clock}", *drift]
