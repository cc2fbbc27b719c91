"""A tenant whose agents accept their work, and a check that no test causes a deadlock."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tenants.models import Tenant
from tests.engine import Engine


@pytest.fixture
def acme(engine: Engine, tenant: Tenant, agent_accepts: None) -> Tenant:
    engine.serve(tenant, max_concurrency=50)
    return tenant


@pytest.fixture(autouse=True)
def no_deadlocks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Transactions wait in the order of the locks; PostgreSQL never has to break a deadlock."""
    caplog.set_level(logging.WARNING)
    yield
    assert "persist_waits" not in [getattr(record, "action", "") for record in caplog.records]
