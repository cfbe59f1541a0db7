"""Histories of concurrent operations on each engine while its servers and clients are killed, judged by a
checker that knows nothing of stores (`checker`): `bursar experiment store-histories`."""

from bursar_lab.experiments.histories.live import run

__all__ = ["run"]
