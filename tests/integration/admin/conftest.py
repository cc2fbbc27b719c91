"""A superuser's browser, and work for it to display."""

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
from tests.superusers import create_superuser

# Registers all models now, because otherwise the first request does it and the content of the registry depends on earlier tests.
admin.autodiscover()


@pytest.fixture
def root(database: None) -> Client:
    """The browser of a superuser with break-glass access to all tenants."""
    browser = Client()
    browser.force_login(create_superuser())
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
