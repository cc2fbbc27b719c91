"""Flower behind its login, all of it.

Flower asks for the login at its pages and its API, and shows the names of workers and tasks at `/metrics` to everybody. Here that asks,
too. What stays open tells nothing: `/healthcheck`, the login, style sheets and pictures.
"""

from __future__ import annotations

from collections.abc import Sequence

PROCESS = "flower"


def is_starting(command: Sequence[str]) -> bool:
    """Whether this command line is one of Flower."""
    return PROCESS in command[1:]


def close() -> None:
    """Idempotent. To be called before Flower serves."""
    from flower.views.monitor import Metrics  # type: ignore[import-untyped]  # it has no types
    from tornado.web import authenticated

    if not hasattr(Metrics.get, "__wrapped__"):
        Metrics.get = authenticated(Metrics.get)
