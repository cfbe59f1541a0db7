"""What the front door promises to several programs at once, shown with real processes: `bursar serve`
and clients of the public API, at default settings. Each is a function `(out, quick) -> findings`."""

from bursar_lab.experiments.door.clients import clients

__all__ = ["clients"]
