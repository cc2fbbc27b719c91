"""A tenant whose agents accept their work and create subtasks."""

from __future__ import annotations

import pytest

from agents.contracts import Accepted
from tenants.models import Tenant
from tests.engine import Engine


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant
