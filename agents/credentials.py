"""Encrypts secrets at rest with AES-256-GCM under a ring of keys, bound to the row that they belong to.

`FIELD_ENCRYPTION_KEYS` lists `name:hex` entries, newest first: the first encrypts, all can decrypt. The context (tenant, row, field) is
authenticated with the text, so a ciphertext that is copied to another row or tenant cannot be decrypted.

Also the secrets that sign jobs for a tenant's agent, and the reports of agents that sign theirs. Until a tenant requests its own secret,
they are derived from the keys of the installation, so that nothing is stored. After a rotation the previous secret signs as well, until
the next rotation, so that agents can switch without refusing a message.
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
    name, key = next(iter(_ring().items()))
    nonce = os.urandom(12)
    sealed = aead.AESGCM(key).encrypt(nonce, orjson.dumps(dict(secrets)), context.encode())
    return f"{name}:{base64.b64encode(nonce + sealed).decode()}"


def unseal(text: str, *, context: str) -> dict[str, str]:
    """Decrypt. Raises `ConfigurationError` when the key is missing or the text belongs to another row."""
    name, _, body = text.partition(":")
    key = _ring().get(name)
    if key is None:
        raise ConfigurationError(
            f"The key {name!r} that encrypted these credentials is not in FIELD_ENCRYPTION_KEYS."
        )
    try:
        raw = base64.b64decode(body)
        opened: dict[str, str] = orjson.loads(aead.AESGCM(key).decrypt(raw[:12], raw[12:], context.encode()))
    except (exceptions.InvalidTag, ValueError) as error:
        raise ConfigurationError(
            "These credentials were encrypted for another row and cannot be decrypted here."
        ) from error
    return opened


def newest_key() -> str:
    """Return the name of the key that encrypts."""
    return next(iter(_ring()))


def is_current(text: str) -> bool:
    """Whether the newest key has encrypted the text."""
    return text.partition(":")[0] == newest_key()


def reseal(text: str, *, context: str) -> str:
    """Encrypt the same secrets under the newest key. Raises `ConfigurationError` when they cannot be decrypted."""
    return seal(unseal(text, context=context), context=context)


def config_context(tenant_id: UUID, role: str) -> str:
    return f"agent_config:{tenant_id}:{role}:auth"


def person_context(user_id: int) -> str:
    return f"user:{user_id}:second_factor"


def agent_context(role: str) -> str:
    return f"agent:{role}:auth"


def signing_secrets(tenant_id: UUID, role: str) -> tuple[str, ...]:
    """Return the derived Standard Webhooks secrets of a tenant's agent, one from each key of the ring, newest first.

    They are not stored, so they cannot leak from the database, and rotating the ring rotates them with an overlap.
    """
    return tuple(
        "whsec_"
        + base64.b64encode(hmac.digest(key, f"webhook:{tenant_id}:{role}".encode(), "sha256")).decode()
        for key in _ring().values()
    )


def _ring() -> dict[str, bytes]:
    """Return the keys of the installation by name, newest first."""
    return _read_ring(tuple(settings.FIELD_ENCRYPTION_KEYS))


@lru_cache(maxsize=4)
def _read_ring(entries: tuple[str, ...]) -> dict[str, bytes]:
    ring = {}
    for entry in entries:
        name, _, secret = entry.partition(":")
        # AES-256 needs 32 bytes, whatever the length of the secret.
        ring[name] = hashlib.sha256(secret.encode()).digest()
    return ring


def signing_context(tenant_id: UUID, role: str) -> str:
    """Return the context that the stored signing secrets are bound to."""
    return f"agent_config:{tenant_id}:{role}:signing"


def signing_secrets_in_force(config: AgentConfig) -> tuple[str, ...]:
    """Return the secrets of a tenant's agent, newest first. Raises `ConfigurationError` when the key that encrypted them is missing."""
    if not config.signing_sealed:
        return signing_secrets(config.tenant_id, config.agent_id)
    unsealed = unseal(config.signing_sealed, context=signing_context(config.tenant_id, config.agent_id))
    return tuple(unsealed["secrets"].split())


def renew_signing_secret(config: AgentConfig) -> str:
    """Set a new secret without saving the row, and return it. The previous secret continues to sign as well."""
    new = webhook_signing.new_secret()
    joined = " ".join((new, *signing_secrets_in_force(config)[:1]))
    config.signing_sealed = seal(
        {"secrets": joined}, context=signing_context(config.tenant_id, config.agent_id)
    )
    return new
