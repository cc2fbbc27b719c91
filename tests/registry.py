"""Temporary agents in the registry, which tests share and must restore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agents import configuration
from agents.models import Agent
from tenants.context import system_scope


@contextmanager
def temporary_agent(role: str = "scribe", **fields: Any) -> Iterator[Agent]:
    """Register an agent for the duration of the block."""
    with system_scope():
        agent = Agent.objects.create(role=role, **{"name": role.capitalize(), **fields})
    configuration.forget()
    try:
        yield agent
    finally:
        with system_scope():
            Agent.objects.filter(role=role).delete()
        configuration.forget()
