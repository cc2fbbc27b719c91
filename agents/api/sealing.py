"""Credentials of an agent as they are sent, made ready to be stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import credentials
from agents.exceptions import ConfigurationError
from agents.models import Agent
from tenants.api.faults import InvalidRequest


def sealed(agent: Agent, auth: Mapping[str, Any] | None) -> str:
    """What to store of credentials as they were sent. Raises `InvalidRequest` when there are none to keep."""
    if auth is None:
        return ""
    context = credentials.agent_context(agent.role)
    if not auth.get("set"):
        return credentials.seal(
            {name: value for name, value in auth.items() if name != "set"}, context=context
        )
    try:
        kind = (
            credentials.unseal(agent.auth_sealed, context=context).get("type") if agent.auth_sealed else None
        )
    except ConfigurationError:
        kind = None
    if kind != auth["type"]:
        raise InvalidRequest([("auth.set", f"there are no credentials of the type {auth['type']} to keep")])
    return agent.auth_sealed
