"""A tenant with agents, and default settings of the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agents import scheduler_settings
from tenants.models import Tenant
from tests.engine import Engine


@pytest.fixture(autouse=True)
def _served_tenant(engine: Engine, tenant: Tenant) -> Iterator[None]:
    engine.serve(tenant)
    scheduler_settings.forget()
    yield
    scheduler_settings.forget()
