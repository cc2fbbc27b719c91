"""A tenant with a deliverable, and its period in May."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipelines import deliverables
from pipelines.models import Deliverable, DeliverablePeriod
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.periods.months import MAY, PLAN, answering, save


@pytest.fixture
def engine(database: None) -> Iterator[Engine]:
    running = Engine(["activity-planner", "qa", "dev"])
    yield running
    running.close()


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    save(tenant, "flow", {"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev"})
    return tenant


@pytest.fixture
def blog(acme: Tenant) -> Deliverable:
    """An active deliverable whose planner answers with `PLAN`."""
    deliverable, _ = deliverables.create(
        acme.pk, {"key": "blog", "name": "Blog", "pipelines": ["flow"], "params": {"tone": "calm"}}
    )
    return deliverable


@pytest.fixture
def may(engine: Engine, acme: Tenant, blog: Deliverable) -> DeliverablePeriod:
    """A period whose planner has not started."""
    engine.agent.behaviour = answering(PLAN)
    (period,) = deliverables.start_new_periods(acme.pk, today=MAY)
    return period
