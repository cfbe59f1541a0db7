"""The rate paper's cluster experiments, run again on real processes (section IV-E).

Every server is a `bursar serve` process of one fleet, with a memcached (or a file) behind it; two client
processes of the public API ask for the tenants, and go to the backend while they hold a grant. What they
were told, with the period that each grant names, is all that a run is judged by. Servers do a given rate,
well below what the machine can carry, so that what is measured is the protocol and not the machine; the
paper's numbers are scaled down by the same factor.

`plan` says what a run does and writes its policy, `client` is a client process, `load` its tenants, `tally`
what they were told, `cluster` starts everything, `measures` judges.
"""

from bursar_lab.experiments.rates_live.dynamic import four, four_many
from bursar_lab.experiments.rates_live.files import five
from bursar_lab.experiments.rates_live.intervals import intervals
from bursar_lab.experiments.rates_live.moving import moving
from bursar_lab.experiments.rates_live.static import three

__all__ = ["five", "four", "four_many", "intervals", "moving", "three"]
