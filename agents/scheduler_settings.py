"""The scheduling settings of the whole platform: the row `scheduler` of `PlatformConfig` over the defaults.

`current()` returns the settings in force, in any process, at most a second old. Only `save` and `change` change them; both accept the
nested form of the platform's specification, in its spelling (`httpClient.connectionPool.maxSockets`) or in ours
(`http_client.connection_pool.max_sockets`), and store ours.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

from django.db import transaction
from django.db.models.functions import Now

from agents.contracts import HttpLimits
from agents.models import PlatformConfig
from agents.signals import scheduling_resumed
from tenants.context import POOL, current_alias
from tenants.exceptions import PreconditionFailed
from tenants.time_zones import error_of_zone
from tenants.wire_json import whole_number

logger = logging.getLogger(__name__)

# The keys: the path of each in the nested form, its attribute, and its valid values.


DAY_MS = 86_400_000
BACKOFFS = ("exponential", "linear", "fixed")
CHANNELS = ("email", "slack", "webhook")


class InvalidValue(ValueError):
    """The value is not valid for the key. The message completes "the key ..."."""


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `fit` converts a JSON value to its stored form, or raises `InvalidValue`."""

    path: str
    attribute: str
    fit: Callable[[Any], Any]
    meaning: str

    @property
    def parts(self) -> list[str]:
        return self.path.split(".")


def camel(name: str) -> str:
    """Return the specification's spelling: maxSockets for max_sockets."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("must be true or false")
    return value


def _whole_number(low: int, high: int) -> Callable[[Any], int]:
    def fit(value: Any) -> int:
        number = whole_number(value)
        if number is None or not low <= number <= high:
            raise InvalidValue(f"must be a whole number from {low:,} to {high:,}")
        return number

    return fit


def _one_of(*choices: str) -> Callable[[Any], str]:
    def fit(value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            raise InvalidValue(f"must be one of {', '.join(choices)}")
        return value

    return fit


def _zone(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue("must be the name of a time zone")
    if error := error_of_zone(value):
        raise InvalidValue(error)
    return value


def _channels(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name in CHANNELS for name in value):
        raise InvalidValue(f"must be a list of {', '.join(CHANNELS)}")
    return list(dict.fromkeys(value))


_MS = _whole_number(0, DAY_MS)
_AT_LEAST_A_SECOND = _whole_number(1_000, DAY_MS)

KEYS = (
    Key("enabled", "enabled", _flag, "Whether schedules fire at all. Current runs continue."),
    Key("timezone", "timezone", _zone, "The time zone of new schedules that set none."),
    Key(
        "check_interval",
        "check_interval_ms",
        _AT_LEAST_A_SECOND,
        "How often beat checks for schedules that are due, in ms.",
    ),
    Key(
        "http_client.timeout",
        "http_timeout_ms",
        _AT_LEAST_A_SECOND,
        "The timeout of agents in ms, unless activity, schedule, agent or tenant set one. While it is not set, "
        "ORCHESTRATOR_DEFAULT_TIMEOUT_SECONDS applies.",
    ),
    Key(
        "http_client.max_concurrent_requests",
        "max_concurrent_requests",
        _whole_number(1, 10_000),
        "Concurrent calls to agents by all processes together; further calls wait for their turn.",
    ),
    Key(
        "http_client.retry_config.max_retries",
        "max_retries",
        _whole_number(0, 49),
        "Retries after the first attempt, unless activity, agent or tenant set a number. While it is not set, there are two.",
    ),
    Key(
        "http_client.retry_config.backoff",
        "backoff",
        _one_of(*BACKOFFS),
        "How the wait between attempts grows, by default.",
    ),
    Key(
        "http_client.retry_config.delay",
        "backoff_delay_ms",
        _MS,
        "The first wait between attempts in ms, by default.",
    ),
    Key(
        "http_client.connection_pool.max_sockets",
        "max_sockets",
        _whole_number(1, 10_000),
        "The maximum of connections of one process, including idle ones.",
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
        _whole_number(1, 10_000),
        "Jobs per batch, unless a data source sets batchSize.",
    ),
    Key(
        "default_batch_processing.stagger_delay",
        "stagger_delay_ms",
        _MS,
        "The time from the start of a batch to the next in ms, unless a data source sets staggerDelay.",
    ),
    Key("monitoring.enabled", "monitoring_enabled", _flag, "Whether schedules report failures at all."),
    Key(
        "monitoring.notify_on_failure",
        "notify_on_failure",
        _flag,
        "Whether people are notified of a failed execution.",
    ),
    Key(
        "monitoring.notification_channels",
        "notification_channels",
        _channels,
        "The kinds of channels that notify them.",
    ),
)


# The nested form, as people and programs write it: read in both spellings, with an error for each path, and stored in one.


LONGEST_GUESS = 63  # characters
MAX_ERRORS = 50
#: Members of the specification that are stored in other tables.
ELSEWHERE = {
    "schedules": "schedules never live in this configuration: create them at /api/v1/schedules/ or in the admin",
    "pipelines": "pipelines never live in this configuration: create them at /api/v1/pipelines/ or in the admin",
}

Tree = dict[str, Any]


class SettingsInvalid(Exception):
    """The settings are invalid. `errors` are pairs of path and message, in the caller's spelling."""

    code: ClassVar[str] = "invalid_settings"
    status: ClassVar[int] = 400

    def __init__(self, errors: list[tuple[str, str]]) -> None:
        self.errors = errors[:MAX_ERRORS]
        super().__init__(
            "; ".join(f"{path}: {message}" if path else message for path, message in self.errors)
        )


def read(tree: Any) -> Tree:
    """Return the settings in their stored form. Null counts as omitted. Raises `SettingsInvalid`."""
    errors: list[tuple[str, str]] = []
    stored: Tree = {}
    for key, value, path in _members(tree, _TREE, "", errors):
        try:
            put(stored, key.parts, key.fit(value))
        except InvalidValue as error:
            errors.append((path, str(error)))
    if errors:
        raise SettingsInvalid(errors)
    return stored


def as_tree(settings: SchedulerSettings) -> Tree:
    """Return all settings in the nested form, including defaults."""
    tree: Tree = {}
    for key in KEYS:
        value = getattr(settings, key.attribute)
        put(tree, key.parts, list(value) if isinstance(value, tuple) else value)
    return tree


def key_at(path: str) -> Key:
    """Return the key with this path, in either spelling. Raises `SettingsInvalid`."""
    parts = path.split(".")
    for key in KEYS:
        if len(parts) == len(key.parts) and all(
            part in (own, camel(own)) for part, own in zip(parts, key.parts, strict=True)
        ):
            return key
    raise SettingsInvalid([(path, _explain_unknown(path, [key.path for key in KEYS]))])


def put(tree: Tree, parts: list[str], value: Any) -> None:
    *above, last = parts
    for part in above:
        tree = tree.setdefault(part, {})
    tree[last] = value


def value_of(text: str) -> Any:
    """Parse a value from the command line as JSON, or return it as text if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _tree() -> Tree:
    tree: Tree = {}
    for key in KEYS:
        put(tree, key.parts, key)
    return tree


_TREE = _tree()


def _members(
    tree: Any, known: Tree, path: str, errors: list[tuple[str, str]]
) -> Iterator[tuple[Key, Any, str]]:
    if not isinstance(tree, Mapping):
        errors.append((path, "must be an object"))
        return
    spellings = {spelling: name for name in known for spelling in (name, camel(name))}
    seen: dict[str, str] = {}
    for spelling, value in tree.items():
        member_path = f"{path}.{spelling}" if path else str(spelling)[:100]
        name = spellings.get(spelling)
        if name is None:
            errors.append(
                (member_path[:200], ELSEWHERE.get(spelling) or _explain_unknown(str(spelling), list(known)))
            )
        elif name in seen:
            errors.append((member_path, f"is a duplicate of {seen[name]}"))
        elif value is not None and isinstance(known[name], Key):
            yield known[name], value, member_path
        elif value is not None:
            yield from _members(value, known[name], member_path, errors)
        if name is not None:
            seen.setdefault(name, str(spelling))


def _explain_unknown(name: str, known: list[str]) -> str:
    guess = get_close_matches(name, known, n=1, cutoff=0.6) if len(name) <= LONGEST_GUESS else []
    return f"is not a scheduling setting{f', did you mean {guess[0]}?' if guess else ''}"


# The settings are one row, with a version that counts the changes, and the actor of the last change.


def row() -> PlatformConfig:
    """Return the row. If it was never saved, it has version 0 and neither time nor actor of a change."""
    saved: PlatformConfig | None = PlatformConfig.objects.filter(key=KEY).first()
    never: Any = None
    return saved or PlatformConfig(key=KEY, value={}, version=0, updated_at=never)


def save(value: Any, *, actor: str, expected_version: int | None = None) -> PlatformConfig:
    """Replace all settings; omitted ones get their defaults. Raises `SettingsInvalid` and `PreconditionFailed`."""
    new_tree = read(value)
    with transaction.atomic(using=current_alias()):
        config = _lock_config()
        if expected_version is not None and config.version != expected_version:
            raise PreconditionFailed(
                f"The settings are at version {config.version}. Read them again and decide again."
            )
        return _write_settings(config, new_tree, actor)


def change(members: Mapping[str, Any], *, actor: str) -> PlatformConfig:
    """Set single keys by their paths in our spelling; None restores the default. Raises `SettingsInvalid`."""
    with transaction.atomic(using=current_alias()):
        config = _lock_config()
        flat = {key.path: member(config.value, key.parts) for key in KEYS} | dict(members)
        new_tree: Tree = {}
        for path, value in flat.items():
            if value is not None:
                put(new_tree, path.split("."), value)
        return _write_settings(config, read(new_tree), actor)


def _lock_config() -> PlatformConfig:
    # Create the row first, so that two concurrent first saves wait for each other as well.
    PlatformConfig.objects.get_or_create(key=KEY, defaults={"version": 0})
    return PlatformConfig.objects.select_for_update().get(key=KEY)


def _write_settings(config: PlatformConfig, new_tree: Tree, actor: str) -> PlatformConfig:
    changed = [key.path for key in KEYS if member(config.value, key.parts) != member(new_tree, key.parts)]
    if changed or not config.version:
        PlatformConfig.objects.filter(key=KEY).update(
            value=new_tree, version=config.version + 1, updated_by=actor[:200], updated_at=Now()
        )
        facts = {"action": "platform_settings_changed", "actor": actor, "keys": changed}
        logger.info("Scheduling settings changed", extra=facts)
        was_enabled = settings_of(config.value).enabled
        config.refresh_from_db()
        if not was_enabled and settings_of(config.value).enabled:
            scheduling_resumed.send(sender=PlatformConfig)
    forget()
    return config


# The settings in force: typed, with the defaults of the platform's specification, and cached for a short time.


KEY = "scheduler"
CACHE_SECONDS = 0.75


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """The settings in force. `explicit` are the attributes that the row sets; the others are defaults."""

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
        """The default timeout of agents, or None if the row does not set one."""
        return max(1, round(self.http_timeout_ms / 1000)) if "http_timeout_ms" in self.explicit else None

    @property
    def retry(self) -> Mapping[str, Any]:
        """The row's retry policy, in the terms of `activities.retry_delays`, which counts the first attempt as well."""
        policies: dict[str, dict[str, Any]] = {
            "max_retries": {"max_attempts": self.max_retries + 1},
            "backoff": {"strategy": self.backoff},
            "backoff_delay_ms": {"base_seconds": self.backoff_delay_ms / 1000},
        }
        return {
            name: value
            for key, part in policies.items()
            if key in self.explicit
            for name, value in part.items()
        }

    @property
    def http(self) -> HttpLimits:
        return HttpLimits(self.max_concurrent_requests, self.max_sockets, self.keep_alive)


_cached: tuple[float, SchedulerSettings] | None = None


def current() -> SchedulerSettings:
    global _cached
    now = time.monotonic()
    if _cached is None or now - _cached[0] > CACHE_SECONDS:
        with POOL.connection():
            value = PlatformConfig.objects.filter(key=KEY).values_list("value", flat=True).first()
        _cached = (now, settings_of(value))
    return _cached[1]


def forget() -> None:
    """Clear the cache, so that the next call reads the current row."""
    global _cached
    _cached = None


def settings_of(value: Any) -> SchedulerSettings:
    """Return the settings of a row's value. Invalid members are logged, and get their defaults."""
    values: dict[str, Any] = {}
    for key in KEYS:
        part = member(value, key.parts)
        if part is None:
            continue
        try:
            fitted = key.fit(part)
        except InvalidValue as error:
            facts = {"action": "platform_setting_unfit", "key": key.path, "fault": str(error)}
            logger.warning("A setting of the platform cannot be used", extra=facts)
            continue
        values[key.attribute] = tuple(fitted) if isinstance(fitted, list) else fitted
    return SchedulerSettings(**values, explicit=frozenset(values))


def member(value: Any, parts: list[str]) -> Any:
    """Return the value at a path of the nested form, or None."""
    for part in parts:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
