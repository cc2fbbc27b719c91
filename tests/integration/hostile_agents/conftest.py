"""A tenant whose agents are hostile, without lockouts after failed requests."""

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
def no_lockout(settings: Any) -> None:
    """Make each refusal depend on the token itself and not on the number of failures before it."""
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = 10_000
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = 10_000
