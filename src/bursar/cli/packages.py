"""A package that is not installed, and the extra of bursar that brings it."""

from __future__ import annotations

from bursar.errors import BursarError

EXTRAS = {
    "dashboard": ("fastapi", "nicegui"),
    "envoy": ("envoy", "google", "grpc", "xds"),
    "http": ("h11", "starlette", "uvicorn"),
    "lab": (
        "aiolimiter",
        "kazoo",
        "limits",
        "matplotlib",
        "ortools",
        "pandas",
        "pyrate_limiter",
        "scipy",
        "statsmodels",
        "throttled",
        "token_bucket",
    ),
    "rates": ("numba", "numpy"),
    "redis": ("redis",),
    "top": ("textual",),
}


def explain_missing(error: ModuleNotFoundError) -> BursarError:
    """What to say of somebody else's package; a module of bursar that is missing is raised again."""
    package = (error.name or "").partition(".")[0]
    if package in ("", "bursar"):
        raise error
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), "all")
    return BursarError(f"this needs the package {package}: pip install 'bursar[{extra}]'")
