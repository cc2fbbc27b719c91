"""Tenants whose agents request approvals."""

from __future__ import annotations

import pytest

from agents.contracts import Accepted
from tenants.models import Tenant
from tests.engine import Engine


@pytest.fixture
def accepting(engine: Engine, acme: Tenant) -> Tenant:
    """A tenant whose agents accept their work and report later."""
    engine.agent.behaviour = lambda request: Accepted()
    return acme
