"""The keys: where each stands in the nested form, which attribute it is, and what it may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zoneinfo import available_timezones

DAY_MS = 86_400_000
BACKOFFS = ("exponential", "linear", "fixed")
CHANNELS = ("email", "slack", "webhook")


class Unfit(ValueError):
    """The value is none of the key's. The message completes "the key ..."."""


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `fit` brings a JSON value to what is kept, or raises `Unfit`."""

    path: str
    attribute: str
    fit: Callable[[Any], Any]
    meaning: str

    @property
    def parts(self) -> list[str]:
        return self.path.split(".")


def camel(name: str) -> str:
    """The specification's spelling: max_sockets is maxSockets."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unfit("must be true or false")
    return value


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def fit(value: Any) -> int:
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        if not whole or not low <= value <= high:
            raise Unfit(f"must be a whole number from {low:,} to {high:,}")
        return int(value)

    return fit


def _one_of(*choices: str) -> Callable[[Any], str]:
    def fit(value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            raise Unfit(f"must be one of {', '.join(choices)}")
        return value

    return fit


def _zone(value: Any) -> str:
    if not isinstance(value, str) or value not in available_timezones():
        raise Unfit("must be the name of a time zone, such as America/New_York")
    return value


def _channels(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name in CHANNELS for name in value):
        raise Unfit(f"must be a list of {', '.join(CHANNELS)}")
    return list(dict.fromkeys(value))


_MS = _whole(0, DAY_MS)
_WAITED = _whole(1_000, DAY_MS)

KEYS = (
    Key("enabled", "enabled", _flag, "Whether schedules fire at all. What runs goes on."),
    Key("timezone", "timezone", _zone, "The zone of new schedules that name none."),
    Key(
        "check_interval",
        "check_interval_ms",
        _WAITED,
        "How often beat looks for schedules that are due, in ms.",
    ),
    Key(
        "http_client.timeout",
        "http_timeout_ms",
        _WAITED,
        "How long an agent may take where neither activity, schedule, agent nor tenant says so, in ms. While it is not set, "
        "ORCHESTRATOR_DEFAULT_TIMEOUT_SECONDS holds.",
    ),
    Key(
        "http_client.max_concurrent_requests",
        "max_concurrent_requests",
        _whole(1, 10_000),
        "Calls that one process has under way at the same time; more wait for their turn.",
    ),
    Key(
        "http_client.retry_config.max_retries",
        "max_retries",
        _whole(0, 49),
        "Tries after the first one, where neither activity, agent nor tenant says so. While it is not set, there are two.",
    ),
    Key(
        "http_client.retry_config.backoff",
        "backoff",
        _one_of(*BACKOFFS),
        "How the wait between tries grows, where nobody says so.",
    ),
    Key(
        "http_client.retry_config.delay",
        "backoff_delay_ms",
        _MS,
        "The first wait between tries, in ms, where nobody says so.",
    ),
    Key(
        "http_client.connection_pool.max_sockets",
        "max_sockets",
        _whole(1, 10_000),
        "Connections that one process has at most, idle ones included.",
    ),
    Key(
        "http_client.connection_pool.keep_alive",
        "keep_alive",
        _flag,
        "Whether connections are kept for the next call.",
    ),
    Key(
        "default_batch_processing.batch_size",
        "batch_size",
        _whole(1, 10_000),
        "Jobs per batch, where a data source does not say batchSize.",
    ),
    Key(
        "default_batch_processing.stagger_delay",
        "stagger_delay_ms",
        _MS,
        "From the start of a batch to the next, in ms, where a data source does not say staggerDelay.",
    ),
    Key("monitoring.enabled", "monitoring_enabled", _flag, "Whether schedules report failures at all."),
    Key(
        "monitoring.notify_on_failure",
        "notify_on_failure",
        _flag,
        "Whether people are told of a failed execution.",
    ),
    Key(
        "monitoring.notification_channels",
        "notification_channels",
        _channels,
        "The kinds of channels on which they are told.",
    ),
)
