"""What a fleet promises while it changes, shown with real processes on a real ZooKeeper: `bursar serve`,
`bursar apply` and clients of the public API, at default settings. Each is a function
`(out, quick) -> findings`."""

from bursar_lab.experiments.fleet.leader import leader
from bursar_lab.experiments.fleet.nodes import nodes
from bursar_lab.experiments.fleet.rolling import rolling
from bursar_lab.experiments.fleet.tenants import tenants

__all__ = ["leader", "nodes", "rolling", "tenants"]
