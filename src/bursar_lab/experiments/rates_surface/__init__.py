"""What callers of a rate see at its surface, with default settings: by `bursar.connect`, in this process
and through daemons. `callers` ask and note what they were told, `places` opens resources, `costs` and
`pacing` are the experiments."""

from bursar_lab.experiments.rates_surface.costs import costs
from bursar_lab.experiments.rates_surface.pacing import pacing

__all__ = ["costs", "pacing"]
