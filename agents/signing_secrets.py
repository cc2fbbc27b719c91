"""The secrets that sign between us and a tenant's agent: the job on its way there, and the reports of agents that sign theirs.

Until a tenant asks for one of its own they are derived from the keys of the installation, so that nothing is stored. A new secret signs
beside the one before it until the next renewal: whoever verifies can change over without a message that is refused.
"""

from __future__ import annotations

from uuid import UUID

from agents import credentials, webhook_signing
from agents.models import AgentConfig


def context_of(tenant_id: UUID, role: str) -> str:
    """What the stored secrets are bound to."""
    return f"agent_config:{tenant_id}:{role}:signing"


def in_force(config: AgentConfig) -> tuple[str, ...]:
    """The secrets of a tenant's agent, newest first. Raises `ConfigurationError` when the key that sealed them is gone."""
    if not config.signing_sealed:
        return credentials.signing_secrets(config.tenant_id, config.agent_id)
    kept = credentials.unseal(config.signing_sealed, context=context_of(config.tenant_id, config.agent_id))
    return tuple(kept["secrets"].split())


def renew(config: AgentConfig) -> str:
    """Give the agent a new secret, without saving it, and return it. The one before signs as well."""
    new = webhook_signing.new_secret()
    kept = " ".join((new, *in_force(config)[:1]))
    config.signing_sealed = credentials.seal(
        {"secrets": kept}, context=context_of(config.tenant_id, config.agent_id)
    )
    return new
