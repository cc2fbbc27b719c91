"""The settings of scheduling that hold for the whole platform: the row `scheduler` of `PlatformConfig` over the defaults.

Read from PostgreSQL at most once a second per process, so that a change is in force within 2 s.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any

from agents.models import PlatformConfig

KEY = "scheduler"
KEPT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Times in milliseconds, as their names say. The defaults are those of the platform's specification."""

    enabled: bool = True
    timezone: str = "America/New_York"
    check_interval_ms: int = 60_000
    http_timeout_ms: int = 300_000
    max_concurrent_requests: int = 50
    max_retries: int = 3
    backoff: str = "exponential"
    backoff_delay_ms: int = 5_000
    max_sockets: int = 100
    keep_alive: bool = True
    batch_size: int = 10
    stagger_delay_ms: int = 1_000
    monitoring_enabled: bool = True
    notify_on_failure: bool = True
    notification_channels: tuple[str, ...] = ("email", "slack")


_kept: tuple[float, SchedulerSettings] | None = None


def current() -> SchedulerSettings:
    """The settings in force."""
    global _kept
    now = time.monotonic()
    if _kept is None or now - _kept[0] > KEPT_SECONDS:
        _kept = (now, _read())
    return _kept[1]


def forget() -> None:
    """Drop what is kept, so that the next question sees the present row."""
    global _kept
    _kept = None


def _read() -> SchedulerSettings:
    value: dict[str, Any] = (
        PlatformConfig.objects.filter(key=KEY).values_list("value", flat=True).first() or {}
    )
    known = {field.name for field in fields(SchedulerSettings)}
    return SchedulerSettings(**{name: found for name, found in value.items() if name in known})
