"""`bursar demo` as a newcomer runs it."""

from __future__ import annotations

import signal
import time

from .processes import bursar


def test_the_demo_runs_headless_and_accounts_for_its_tokens() -> None:
    with bursar("demo", "--seconds", "1.5", "--headless") as demo:
        assert demo.wait(30) == 0
        lines = demo.output().splitlines()
    assert len(lines) > 5
    assert "tokens accounted for" in lines[-1]
    spent = int(lines[-1].split()[0])
    assert spent > 0


def test_the_live_view_draws_and_ends() -> None:
    with bursar("demo", "--seconds", "1", COLUMNS="80") as demo:
        assert demo.wait(30) == 0
        assert "a lease: 5000 tokens" in demo.output()


def test_ctrl_c_ends_the_demo_cleanly() -> None:
    with bursar("demo", "--headless") as demo:
        assert demo.child.stdout is not None
        demo.child.stdout.readline()
        began = time.monotonic()
        demo.signal(signal.SIGINT)
        assert demo.wait() == 130
        assert time.monotonic() - began < 3
        assert "Traceback" not in "".join(demo.lines)


def test_nonsense_is_refused_with_what_to_write() -> None:
    with bursar("demo", "--seconds", "-1") as demo:
        assert demo.wait() == 2
        assert "--seconds" in "".join(demo.lines)
