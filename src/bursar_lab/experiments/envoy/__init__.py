"""Real Envoys under a load that moves: `bursar experiment envoy-fleet` and `envoy-moving`."""

from bursar_lab.experiments.envoy.fleet import fleet
from bursar_lab.experiments.envoy.moving import moving

__all__ = ["fleet", "moving"]
