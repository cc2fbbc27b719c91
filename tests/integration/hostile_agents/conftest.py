"""A tenant whose agents are hostile, and callers whom no failure locks out."""

from __future__ import annotations

from typing import Any

import pytest

from agents.contracts import Accepted
from tenants.models import Tenant
from tests.engine import Engine


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


@pytest.fixture(autouse=True)
def nobody_is_locked_out(settings: Any) -> None:
    """So that each refusal is of the token itself, and not because so many came before it."""
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = 10_000
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = 10_000
