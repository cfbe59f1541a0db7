"""Functions run as `bursar work` runs them, in a test's own process."""

from __future__ import annotations

from bursar.claims.tracker import Dispatch, Report
from bursar.runtime.children import Children
from bursar.runtime.functions import Functions
from bursar.runtime.running import FunctionTracker
from bursar.runtime.work_thread import WorkThread


def track(functions: Functions, app: str = "nothing:app") -> FunctionTracker:
    return FunctionTracker(functions, WorkThread(), Children(app))


async def call(functions: Functions, dispatch: Dispatch) -> bytes:
    report = await track(functions).dispatch(dispatch)
    assert isinstance(report, Report) and report.outcome == "ok", report
    return report.result
