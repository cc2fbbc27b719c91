"""What is in force: typed, with the defaults of the platform's specification, and remembered for a moment."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agents.contracts import HttpLimits
from agents.models import PlatformConfig
from agents.scheduler_settings.keys import KEYS, Unfit

KEY = "scheduler"
KEPT_SECONDS = (
    0.75  # with the second for which `agents.configuration` keeps what it read, a change acts within two
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Times in milliseconds, as their names say. `explicit` holds the attributes that the row sets; the others are defaults."""

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
    explicit: frozenset[str] = frozenset()

    @property
    def timeout_seconds(self) -> int | None:
        """How long an agent may take where nobody else says so; None while the row does not say it either."""
        return max(1, round(self.http_timeout_ms / 1000)) if "http_timeout_ms" in self.explicit else None

    @property
    def retry(self) -> Mapping[str, Any]:
        """What the row says about trying again, in the terms of `activities.retry`: tries after the first are one less than all."""
        said: dict[str, dict[str, Any]] = {
            "max_retries": {"max_attempts": self.max_retries + 1},
            "backoff": {"strategy": self.backoff},
            "backoff_delay_ms": {"base_seconds": self.backoff_delay_ms / 1000},
        }
        return {
            name: value for key, part in said.items() if key in self.explicit for name, value in part.items()
        }

    @property
    def http(self) -> HttpLimits:
        """What the HTTP client of a process obeys."""
        return HttpLimits(self.max_concurrent_requests, self.max_sockets, self.keep_alive)


_kept: tuple[float, SchedulerSettings] | None = None


def current() -> SchedulerSettings:
    """The settings in force."""
    global _kept
    now = time.monotonic()
    if _kept is None or now - _kept[0] > KEPT_SECONDS:
        value = PlatformConfig.objects.filter(key=KEY).values_list("value", flat=True).first()
        _kept = (now, settings_of(value))
    return _kept[1]


def forget() -> None:
    """Drop what is kept, so that the next question sees the present row."""
    global _kept
    _kept = None


def settings_of(value: Any) -> SchedulerSettings:
    """The settings that a row's value stands for. What nobody can have saved is logged and has its default."""
    found: dict[str, Any] = {}
    for key in KEYS:
        given = member(value, key.parts)
        if given is None:
            continue
        try:
            fitted = key.fit(given)
        except Unfit as fault:
            facts = {"action": "platform_setting_unfit", "key": key.path, "fault": str(fault)}
            logger.warning("A setting of the platform cannot be used", extra=facts)
            continue
        found[key.attribute] = tuple(fitted) if isinstance(fitted, list) else fitted
    return SchedulerSettings(**found, explicit=frozenset(found))


def member(value: Any, parts: list[str]) -> Any:
    """What stands at a path of the nested form, or None."""
    for part in parts:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
