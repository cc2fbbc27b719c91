"""A tenant with agents for its pipelines."""

from __future__ import annotations

import pytest

from tenants.models import Tenant
from tests.engine import Engine


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    return tenant
