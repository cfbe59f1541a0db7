"""Web services with several workers before one daemon: what clients were told is what was charged.

services    the same service over ASGI (uvicorn's workers), WSGI and gRPC, each charging a default quota
callers     clients that read, that hang up, and that want more than there is
workers     the experiment
"""

from bursar_lab.experiments.web.workers import workers

__all__ = ["workers"]
