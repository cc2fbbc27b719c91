"""A superuser's browser, and work for it to look at."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.test import Client

from activities.models import Activity
from agents.exceptions import PermanentAgentError
from pipelines import submission, versions
from pipelines.models import PipelineRun
from tenants.models import Tenant
from tests.browsing import BRIEF
from tests.engine import Engine
from tests.superusers import seeing_all

# Otherwise the first request of a process does it, and what a test finds in the registry depends on the tests before it.
admin.autodiscover()


@pytest.fixture
def root(database: None) -> Client:
    """A browser in which a superuser has signed in who has broken the glass of all tenants."""
    browser = Client()
    browser.force_login(seeing_all())
    return browser


@pytest.fixture
def waiting(engine: Engine, tenant: Tenant) -> Activity:
    """An agent's activity that awaits approval."""
    engine.serve(tenant)
    (activity,) = engine.submit(tenant, "qa", requires_approval=True, params={"topic": "bees"})
    engine.drain()
    return engine.get(tenant, activity)


@pytest.fixture
def failed(engine: Engine, tenant: Tenant) -> Activity:
    def refuse(request: object) -> Any:
        raise PermanentAgentError("The page <b>is</b> gone.")

    engine.agent.behaviour = refuse
    engine.serve(tenant)
    (activity,) = engine.submit(tenant, "qa")
    engine.drain()
    return engine.get(tenant, activity)


@pytest.fixture
def run(engine: Engine, tenant: Tenant) -> PipelineRun:
    """A run of a pipeline whose second step awaits approval."""
    engine.serve(tenant)
    versions.save(tenant.pk, BRIEF, actor="test")
    started = submission.start_run(tenant.pk, "brief", submission.NewRun(), actor="test")
    engine.drain()
    return started
