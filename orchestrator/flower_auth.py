"""Protects all of Flower with its login.

Flower requires the login for its pages and its API, but shows the names of workers and tasks at `/metrics` to everybody. Here `/metrics`
requires it too. Only `/healthcheck`, the login page, style sheets and images stay open, which contain no data.
"""

from __future__ import annotations

from collections.abc import Sequence

PROCESS = "flower"


def is_starting(command: Sequence[str]) -> bool:
    """Return whether this command line starts Flower."""
    return PROCESS in command[1:]


def protect_metrics() -> None:
    """Require the login for `/metrics`. Idempotent. Must be called before Flower serves."""
    from flower.views.monitor import Metrics  # type: ignore[import-untyped]  # it has no types
    from tornado.web import authenticated

    if not hasattr(Metrics.get, "__wrapped__"):
        Metrics.get = authenticated(Metrics.get)
