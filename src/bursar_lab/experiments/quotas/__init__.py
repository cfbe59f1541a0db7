"""The quota paper's experiments, run again (section V), and past them.

Each is a function `(out, quick) -> findings`. Everything runs on the books that production runs,
in virtual time (`grid`); `response` also measures real nodes. The workload of the bars: a quota of
10^4 mean requests a node, placed at random, used until less than a request is left; five runs.
"""

from bursar_lab.experiments.quotas.cost import cost, sizes
from bursar_lab.experiments.quotas.faults import live
from bursar_lab.experiments.quotas.forms import forms
from bursar_lab.experiments.quotas.gateway import gateway
from bursar_lab.experiments.quotas.remaining import remaining
from bursar_lab.experiments.quotas.response import response
from bursar_lab.experiments.quotas.scale import scale

__all__ = ["cost", "forms", "gateway", "live", "remaining", "response", "scale", "sizes"]
