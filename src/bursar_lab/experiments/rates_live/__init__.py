"""The rate paper's cluster experiments, run again on real processes (section IV-E).

Every server is a process with its own queues, scheduler and backend (a real memcached, or a file);
the controller is another, with a store of its own on disk; they talk over loopback. Servers do a
fixed rate, well below what the machine can carry, so that what is measured is the protocol and not
the machine; the paper's numbers are scaled down by the same factor.

`plan` says what a run does, `node` is a process of it, `load` its tenants, `ledger` what was
served in the end, `cluster` starts and kills, `measures` judges.
"""

from bursar_lab.experiments.rates_live.dynamic import four, four_many
from bursar_lab.experiments.rates_live.failover import failover
from bursar_lab.experiments.rates_live.files import five
from bursar_lab.experiments.rates_live.intervals import intervals
from bursar_lab.experiments.rates_live.static import three

__all__ = ["failover", "five", "four", "four_many", "intervals", "three"]
