"""Tenants whose agents ask for approvals."""

from __future__ import annotations

import pytest

from agents.contracts import Accepted
from tenants.models import Tenant
from tests.engine import Engine


@pytest.fixture
def patient(engine: Engine, acme: Tenant) -> Tenant:
    """Agents accept their work, and report later."""
    engine.agent.behaviour = lambda request: Accepted()
    return acme
