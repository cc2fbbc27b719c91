"""Protects all of Flower with its login, and without one keeps it on this machine.

Flower requires the login for its pages and its API, but shows the names of workers and tasks at `/metrics` to everybody. Here `/metrics`
requires it too. Only `/healthcheck`, the login page, style sheets and images stay open, which contain no data.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

PROCESS = "flower"


def is_starting(command: Sequence[str]) -> bool:
    """Return whether this command line starts Flower."""
    return PROCESS in command[1:]


def stay_on_loopback(command: Sequence[str], environment: MutableMapping[str, str]) -> None:
    """Let Flower listen on loopback by default if it has no login, because it shows the work of all tenants. An option still decides."""
    options = [argument.lstrip("-").replace("_", "-") for argument in command]
    if not environment.get("FLOWER_BASIC_AUTH") and not any(
        each.startswith("basic-auth") for each in options
    ):
        environment.setdefault("FLOWER_ADDRESS", "127.0.0.1")


def protect_metrics() -> None:
    """Require the login for `/metrics`. Idempotent. Must be called before Flower serves."""
    from flower.views.monitor import Metrics  # type: ignore[import-untyped]  # it has no types
    from tornado.web import authenticated

    if not hasattr(Metrics.get, "__wrapped__"):
        Metrics.get = authenticated(Metrics.get)
