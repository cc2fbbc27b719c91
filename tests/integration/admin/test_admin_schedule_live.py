"""The live preview in the form of a schedule, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pipelines.models import Schedule
from pipelines.schedules import editing
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests import pages
from tests.browsing import list_url, page_url
from tests.engine import Engine
from tests.superusers import create_superuser
from tests.tickers import body, tickers

pytestmark = pytest.mark.ui

ANSWER = "#schedule-preview [data-answer]"


@pytest.fixture
def daily(engine: Engine, tenant: Tenant) -> Schedule:
    engine.serve(tenant)
    tickers(tenant, 12)
    params = {"tickerId": "db:ticker:all:id?batchSize=5"}
    return editing.create(tenant.pk, body(params=params), actor="test")


@pytest.fixture
def screen(database: None) -> Iterator[Any]:
    """A page of a superuser. Errors in its console fail the test."""
    with pages.page_of(create_superuser(), width=1400, height=900) as page:
        yield page


def test_the_preview_follows_the_fields_without_saving(daily: Schedule, screen: Any) -> None:
    screen.goto(page_url(daily))
    screen.wait_for_selector(f"{ANSWER} >> text=12 jobs in 3 batches")

    screen.fill("[name=cron]", "30 2 * * 0")
    screen.wait_for_selector(f"{ANSWER} >> text=At 02:30, only on Sunday (America/New_York)")
    assert screen.locator(f"{ANSWER} tbody tr").count() == 5

    screen.fill("[name=cron]", "61 * * * *")
    screen.wait_for_selector(f"{ANSWER} .orc-error >> text=cron")
    screen.select_option("[name=repeat]", "once")
    screen.fill("[name=start_at]", "2030-05-01T09:30")
    screen.wait_for_selector(f"{ANSWER} >> text=Once at 2030-05-01 09:30 (America/New_York)")
    assert "orc-unused" in screen.locator(".field-cron").first.get_attribute("class"), "it will be ignored"

    screen.fill("[name=params]", '{"tickerId": "db:tickr:all:id"}')
    screen.wait_for_selector(f"{ANSWER} .orc-error >> text=did you mean ticker?")
    screen.fill("[name=params]", "{}")
    screen.click("[data-preview]")
    screen.wait_for_selector(f"{ANSWER} >> text=1 job in 1 batch.")
    with tenant_scope(daily.tenant_id):
        assert Schedule.objects.get().version == 1


def test_an_empty_form_shows_no_errors_before_a_change(daily: Schedule, screen: Any) -> None:
    screen.goto(f"{list_url(Schedule)}add/", wait_until="networkidle")
    assert screen.inner_text(ANSWER) == ""

    screen.fill("[name=cron]", "30 2 * * 0")

    screen.wait_for_selector(f"{ANSWER} >> text=tenant")
