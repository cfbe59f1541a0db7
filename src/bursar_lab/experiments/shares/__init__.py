"""The share paper's experiments, run again (sections IV-D to IV-H; IV-G is `bursar_lab.benchmarks.shares`).

Each is a function `(out, quick) -> findings`: it draws its figures into `out` and returns its
numbers, the claims it checks under "checks", and a table. The baselines No BW
and Static BW run beside bursar on the same load, simulated and on the real storage target.
"""

from bursar_lab.experiments.shares.controller import blkio
from bursar_lab.experiments.shares.lending import lending
from bursar_lab.experiments.shares.payback import payback
from bursar_lab.experiments.shares.timelines import allocation, frequency, recompensation, redistribution

__all__ = ["allocation", "blkio", "frequency", "lending", "payback", "recompensation", "redistribution"]
