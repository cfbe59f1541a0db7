"""Real Envoys under a load that moves: `bursar experiment envoy-fleet`."""

from bursar_lab.experiments.envoy.fleet import fleet

__all__ = ["fleet"]
