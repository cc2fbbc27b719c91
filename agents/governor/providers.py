"""Finds the model provider of a role's settings: its address, the credential, and its limits.

A credential is only sent to the address that it was set for: the keys in the environment go to the provider's own address (or to the one
that the operators have set with them), never to an endpoint of the registry or of a tenant.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import orjson
import redis
from django.conf import settings

from agents import outbound
from agents.contracts import BATCHES_OF, AdapterSettings
from agents.exceptions import ConfigurationError
from agents.governor import Governor, keys
from agents.governor.limits import TIERS, Profile
from tenants import redis as connections
from tenants.caches import TtlCache

#: For each adapter of a provider, the setting with the platform's key.
_KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
#: The adapters that call a provider.
NAMES = frozenset({*_KEYS, *BATCHES_OF})
#: The names of the providers that can be paused.
PROVIDERS = tuple(_KEYS)
OPENAI_URL = "https://api.openai.com/v1"

#: Headers of the protocol. A credential must not replace them.
_OWN_HEADERS = frozenset(
    (
        "accept", "accept-encoding", "anthropic-version", "connection", "content-encoding", "content-length", "content-type", "cookie",
        "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "user-agent",
    )
)  # fmt: skip

_PROFILE_FIELDS = frozenset(each.name for each in fields(Profile))


@dataclass(frozen=True, slots=True)
class Provider:
    """`place` is host and port, for people. `key` names the state: all callers of the same place with the same credential share it."""

    adapter: str
    base_url: str
    place: str
    key: str
    key_setting: str
    headers: Mapping[str, str] = field(repr=False)
    profile: Profile = field(default_factory=Profile)

    @property
    def name(self) -> str:
        """The provider's name in messages."""
        return f"{self.adapter} at {self.place}"

    @property
    def governor(self) -> Governor:
        return Governor(self.key, self.profile)


def provider_of(chosen: AdapterSettings) -> Provider:
    """Return the provider. Raises `ConfigurationError` for settings without one, `OutboundRefused` for an invalid address."""
    chosen = in_real_time(chosen)
    if chosen.adapter not in _KEYS:
        raise ConfigurationError(f"The adapter {chosen.adapter!r} calls no model provider.")
    base_url = chosen.endpoint or (
        settings.OPENAI_BASE_URL if chosen.adapter == "openai" else settings.ANTHROPIC_BASE_URL
    )
    headers = _credential(chosen)
    place = outbound.read_url(base_url).place
    secret = "\n".join(f"{name}: {value}" for name, value in sorted(headers.items()))
    digest = hmac.digest(settings.SECRET_KEY.encode(), secret.encode(), hashlib.sha256).hex()[:16]
    return Provider(
        adapter=chosen.adapter, base_url=base_url, place=place, key=f"{chosen.adapter}|{place}|{digest}",
        key_setting=_KEYS[chosen.adapter], headers=headers,
        profile=profile_of(chosen.options.get("provider"), chosen.adapter, place),
    )  # fmt: skip


def payable_provider_of(chosen: AdapterSettings) -> Provider:
    """Like `provider_of`, for code that is about to call the model of these settings. Also raises `ConfigurationError` if a key of the
    platform may not be used for the model."""
    provider, model = provider_of(chosen), chosen.model or ""
    if provider.headers and not any(fnmatchcase(model, pattern) for pattern in chosen.platform_pays_for):
        raise ConfigurationError(
            f"The platform's key may not be used for the model {model!r} of {provider.adapter} here. "
            "Give the role its own credentials, or ask the operators to allow it."
        )
    return provider


def name_of(adapter: str) -> str | None:
    """Return which of `PROVIDERS` an adapter calls, at once or in batches."""
    real = BATCHES_OF.get(adapter, adapter)
    return real if real in _KEYS else None


def names_by_adapter() -> dict[str, list[str | None]]:
    """Return `adapters`, and of each the provider that it calls, as parameters of statements."""
    adapters = sorted(NAMES)
    return {"adapters": [*adapters], "providers": [name_of(adapter) for adapter in adapters]}


def in_real_time(chosen: AdapterSettings) -> AdapterSettings:
    """Return the settings that call the same model at once. Settings of adapters without batches stay unchanged."""
    return replace(chosen, adapter=BATCHES_OF.get(chosen.adapter, chosen.adapter))


def profile_of(limits: Any, adapter: str, place: str) -> Profile:
    """Return the limits from the role's options, else from the platform's settings for this place or adapter, else no limits."""
    known: Mapping[str, Any] = settings.ORCHESTRATOR_PROVIDER_LIMITS
    chosen = limits if limits is not None else known.get(place, known.get(adapter))
    if chosen is None:
        return Profile()
    if isinstance(chosen, str):
        chosen = {"tier": chosen}
    if not isinstance(chosen, Mapping):
        raise ConfigurationError("The limits of a provider must be a tier's name or an object.")
    return _profile(tuple(sorted(chosen.items())))


@lru_cache(maxsize=256)
def _profile(limits: tuple[tuple[str, Any], ...]) -> Profile:
    values = dict(limits)
    tier = values.pop("tier", None)
    if tier is not None and tier not in TIERS:
        raise ConfigurationError(f"There is no tier {tier!r}; there are {', '.join(TIERS)}.")
    if unknown := values.keys() - _PROFILE_FIELDS:
        raise ConfigurationError(f"The limits of a provider cannot have {', '.join(sorted(unknown))}.")
    base = TIERS[tier] if tier else Profile()
    try:
        return Profile(**{name: getattr(base, name) for name in _PROFILE_FIELDS} | values)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"The limits of a provider are invalid: {error}") from error


def _credential(chosen: AdapterSettings) -> Mapping[str, str]:
    auth = chosen.auth
    if not all(isinstance(value, str) for value in auth.values()):
        raise ConfigurationError("The provider's credentials must consist of text values.")
    match auth.get("type", "none" if not auth else ""):
        case "bearer" if auth.get("token"):
            return _key_header(chosen.adapter, auth["token"])
        case "header" if auth.get("name") and "value" in auth:
            if auth["name"].lower() in _OWN_HEADERS:
                raise ConfigurationError(f"The header {auth['name']} is set by the protocol itself.")
            return {auth["name"]: auth["value"]}
        case "none" if chosen.endpoint:
            return {}  # a private server that requires no key
        case "none":
            return _platform_key(chosen.adapter)
    raise ConfigurationError(
        "A provider's credentials must be a bearer token (its key), or a header's name and value."
    )


def _platform_key(adapter: str) -> Mapping[str, str]:
    name = _KEYS[adapter]
    key: str = getattr(settings, name)
    if not key and adapter == "openai" and settings.OPENAI_BASE_URL != OPENAI_URL:
        return {}  # the operators' own server, which requires no key
    if not key:
        raise ConfigurationError(
            f"There is no key for {adapter}: set {name}, or give the role its own credentials."
        )
    return _key_header(adapter, key)


def _key_header(adapter: str, key: str) -> Mapping[str, str]:
    return {"x-api-key": key} if adapter == "anthropic" else {"Authorization": f"Bearer {key}"}


# The recently called providers, for the page of their states. Nothing depends on them.


logger = logging.getLogger(__name__)

NOTE_SECONDS = 60.0  # how often a process records a provider that it calls
KEPT_SECONDS = 2 * 86_400.0  # as long as the governor's own state

_noted: TtlCache[bool] = TtlCache(seconds=NOTE_SECONDS, entries=10_000)


@dataclass(frozen=True, slots=True)
class KnownProvider:
    """A provider that was called, without its credential."""

    key: str
    adapter: str
    place: str
    profile: Profile
    called_at: float  # seconds since 1970, to within a minute
    base_url: str = ""  # empty if an earlier version recorded it


def note_call(provider: Provider) -> None:
    """Record that this provider is called. Writes at most once a minute, and never fails."""
    if _noted.recall(provider.key):
        return
    _noted.keep(provider.key, True)
    row = {
        "adapter": provider.adapter,
        "place": provider.place,
        "base_url": provider.base_url,
        "profile": asdict(provider.profile),
        "called_at": time.time(),
    }
    try:
        connections.client().hset(keys.known_providers(), provider.key, orjson.dumps(row))
    except redis.RedisError:
        logger.info("Provider not recorded", extra={"action": "provider_not_noted"})


def list_known_providers() -> list[KnownProvider]:
    """Return the providers called within two days, by place. Raises `redis.RedisError`."""
    client = connections.client()
    stored: Any = client.hgetall(keys.known_providers())
    rows = {key.decode(): orjson.loads(row) for key, row in stored.items()}
    old = [key for key, row in rows.items() if row["called_at"] < time.time() - KEPT_SECONDS]
    if old:
        client.hdel(keys.known_providers(), *old)
    providers = [
        KnownProvider(
            key,
            row["adapter"],
            row["place"],
            _profile_of_known(row["profile"]),
            row["called_at"],
            row.get("base_url", ""),
        )
        for key, row in rows.items()
        if key not in old
    ]
    return sorted(providers, key=lambda each: (each.adapter, each.place, each.key))


def _profile_of_known(row: dict[str, Any]) -> Profile:
    """Read a profile that another version may have recorded."""
    return Profile(**{each.name: row[each.name] for each in fields(Profile) if each.name in row})
