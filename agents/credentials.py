"""Secrets at rest: AES-256-GCM under a ring of keys, bound to the row they belong to.

`FIELD_ENCRYPTION_KEYS` lists `name:hex` entries, newest first: the first seals, all can unseal. The context (tenant, row, field) is
authenticated with the text, so a ciphertext copied to another row or tenant does not open.

Secrets that sign between us and a tenant's agent: the job on its way there, and the reports of agents that sign theirs. Until a tenant
asks for one of its own they are derived from the keys of the installation, so that nothing is stored. A new secret signs beside the one
before it until the next renewal: receivers can change over without a message that is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from uuid import UUID

import orjson
from django.conf import settings

from agents import webhook_signing
from agents.exceptions import ConfigurationError
from agents.models import AgentConfig
from tenants.lazy_import import lazy_import

if TYPE_CHECKING:
    from cryptography import exceptions
    from cryptography.hazmat.primitives.ciphers import aead
else:
    aead = lazy_import("cryptography.hazmat.primitives.ciphers.aead")
    exceptions = lazy_import("cryptography.exceptions")


def seal(secrets: Mapping[str, str], *, context: str) -> str:
    """Encrypt under the newest key: `<key name>:<base64 of nonce and ciphertext>`."""
    name, key = next(iter(_ring(tuple(settings.FIELD_ENCRYPTION_KEYS)).items()))
    nonce = os.urandom(12)
    sealed = aead.AESGCM(key).encrypt(nonce, orjson.dumps(dict(secrets)), context.encode())
    return f"{name}:{base64.b64encode(nonce + sealed).decode()}"


def unseal(text: str, *, context: str) -> dict[str, str]:
    """Raises `ConfigurationError` when the key is gone or the text belongs to another row."""
    name, _, body = text.partition(":")
    key = _ring(tuple(settings.FIELD_ENCRYPTION_KEYS)).get(name)
    if key is None:
        raise ConfigurationError(
            f"The key {name!r} that sealed these credentials is not in FIELD_ENCRYPTION_KEYS."
        )
    try:
        raw = base64.b64decode(body)
        opened: dict[str, str] = orjson.loads(aead.AESGCM(key).decrypt(raw[:12], raw[12:], context.encode()))
    except (exceptions.InvalidTag, ValueError) as error:
        raise ConfigurationError(
            "These credentials were sealed for another place and cannot be opened here."
        ) from error
    return opened


def newest_key() -> str:
    """The name of the key that seals."""
    return next(iter(_ring(tuple(settings.FIELD_ENCRYPTION_KEYS))))


def is_current(text: str) -> bool:
    """Whether the newest key has sealed it."""
    return text.partition(":")[0] == newest_key()


def reseal(text: str, *, context: str) -> str:
    """The same secrets under the newest key. Raises `ConfigurationError` when they cannot be opened."""
    return seal(unseal(text, context=context), context=context)


def config_context(tenant_id: UUID, role: str) -> str:
    return f"agent_config:{tenant_id}:{role}:auth"


def person_context(user_id: int) -> str:
    return f"user:{user_id}:second_factor"


def agent_context(role: str) -> str:
    return f"agent:{role}:auth"


def signing_secrets(tenant_id: UUID, role: str) -> tuple[str, ...]:
    """Standard Webhooks secrets of a tenant's agent, derived from each key of the ring, newest first.

    Derived, not stored: nothing to leak, and rotating the ring rotates them with an overlap.
    """
    ring = _ring(tuple(settings.FIELD_ENCRYPTION_KEYS))
    return tuple(
        "whsec_"
        + base64.b64encode(hmac.digest(key, f"webhook:{tenant_id}:{role}".encode(), "sha256")).decode()
        for key in ring.values()
    )


@lru_cache(maxsize=4)
def _ring(entries: tuple[str, ...]) -> dict[str, bytes]:
    ring = {}
    for entry in entries:
        name, _, secret = entry.partition(":")
        # Whatever the length of the secret, AES-256 gets 32 bytes of it.
        ring[name] = hashlib.sha256(secret.encode()).digest()
    return ring


def signing_context(tenant_id: UUID, role: str) -> str:
    """What the stored secrets are bound to."""
    return f"agent_config:{tenant_id}:{role}:signing"


def signing_secrets_in_force(config: AgentConfig) -> tuple[str, ...]:
    """The secrets of a tenant's agent, newest first. Raises `ConfigurationError` when the key that sealed them is gone."""
    if not config.signing_sealed:
        return signing_secrets(config.tenant_id, config.agent_id)
    unsealed = unseal(config.signing_sealed, context=signing_context(config.tenant_id, config.agent_id))
    return tuple(unsealed["secrets"].split())


def renew_signing_secret(config: AgentConfig) -> str:
    """Give the agent a new secret, without saving it, and return it. The previous secret continues to sign as well."""
    new = webhook_signing.new_secret()
    joined = " ".join((new, *signing_secrets_in_force(config)[:1]))
    config.signing_sealed = seal(
        {"secrets": joined}, context=signing_context(config.tenant_id, config.agent_id)
    )
    return new
