"""A node's wall clock, turned while it runs: a few lines of C in the place of the C library's.

Only the wall clock is turned (clock_gettime of CLOCK_REALTIME, gettimeofday, time), by a number of
nanoseconds in a file that the process maps: the monotonic clocks are those that the promises are made
by. libfaketime can do the same, but a daemon under it takes five times as long to start, because every
question is answered through its file.
"""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

VARIABLE = "BURSAR_STORM_CLOCK"
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

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("BURSAR_STORM_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) turned_by = found;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (failed || !turned_by || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t whole = (int64_t)at->tv_sec * 1000000000 + at->tv_nsec + *turned_by;
    at->tv_sec = whole / 1000000000;
    at->tv_nsec = whole % 1000000000;
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


def list_settings(folder: Path, clock: Path) -> list[str]:
    """What a process under a turned clock has in its environment."""
    library = build(folder)
    assert library is not None, "plans turn no clock where it cannot be done"
    return [f"LD_PRELOAD={library}", f"{VARIABLE}={clock}"]
