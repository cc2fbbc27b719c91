"""A tenant whose agents ask and wait; and no deadlock, anyone who acts."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from agents.contracts import Accepted
from tenants.models import Tenant
from tests.engine import Engine


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant, max_concurrency=50)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


@pytest.fixture(autouse=True)
def no_deadlocks(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Anyone who gives way gives way in the order of the locks, not because PostgreSQL has broken a circle."""
    caplog.set_level(logging.WARNING)
    yield
    assert "persist_waits" not in [getattr(record, "action", "") for record in caplog.records]
