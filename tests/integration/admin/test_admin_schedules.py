"""Schedules in the admin: the list, the form with its preview, and what people do from there."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client

from pipelines.models import Schedule
from pipelines.schedules import saving
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.browsing import list_of, no_inlines, page_of, words
from tests.engine import Engine
from tests.scheduling import body, tickers

PREVIEW = "/admin/pipelines/schedule/preview/"


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    tickers(tenant, 12)
    return tenant


@pytest.fixture
def daily(acme: Tenant) -> Schedule:
    return saving.create(acme.pk, body(params={"tickerId": "db:ticker:all:id?batchSize=5"}), actor="test")


def form(**fields: Any) -> dict[str, Any]:
    return {
        "name": "Daily", "enabled": "on", "target_type": "agent", "agent_role": "qa", "repeat": "repeating", "cron": "0 8 * * *",
        "timezone": "America/New_York", "dst_gap": "shift", "dst_fold": "first", "params": "{}", "priority": "10",
        "overlap": "skip", "after_once": "disable", "catch_up_policy": "latest", **fields,
    }  # fmt: skip


def save(browser: Client, schedule: Schedule | None, **fields: Any) -> HttpResponse:
    address = page_of(schedule) if schedule else f"{list_of(Schedule)}add/"
    return browser.post(address, form(**fields) | no_inlines("executions", "firings"))


def again(schedule: Schedule) -> Schedule:
    with tenant_scope(schedule.tenant_id):
        return Schedule.objects.get(pk=schedule.pk)


def test_a_schedule_is_made_in_the_form(acme: Tenant, root: Client) -> None:
    answer = save(
        root,
        None,
        tenant=str(acme.pk),
        params='{"topic": "bees"}',
        retry_max_attempts="5",
        timeout_seconds="60",
    )

    assert answer.status_code == 302, words(answer)
    with tenant_scope(acme.pk):
        made = Schedule.objects.get()
    assert (made.name, made.cron, made.params, made.retry, made.timeout_seconds, made.created_by) == (
        "Daily", "0 8 * * *", {"topic": "bees"}, {"max_attempts": 5}, 60, "user:root",
    )  # fmt: skip
    assert made.next_run_at is not None


def test_the_form_shows_a_schedule_and_saves_it_unchanged(daily: Schedule, root: Client) -> None:
    page = root.get(page_of(daily))
    shown = page.context["adminform"].form.initial

    answer = save(root, daily, params=shown and '{"tickerId": "db:ticker:all:id?batchSize=5"}', expected="1")

    assert page.status_code == 200
    assert answer.status_code == 302, words(answer)
    assert again(daily).version == 1


def test_the_preview_tells_what_will_happen(daily: Schedule, root: Client) -> None:
    filled = form(schedule=str(daily.pk), params='{"tickerId": "db:ticker:all:id?batchSize=5"}')

    answer = root.post(PREVIEW, filled)

    text = words(answer)
    assert "At 08:00 (America/New_York)" in text
    assert "12 jobs in 3 batches; the last batch starts 2 s after the first" in text
    assert '"tickerId": &quot;T0&quot;' in text or "&quot;T0&quot;" in text


def test_the_preview_names_every_fault(daily: Schedule, root: Client) -> None:
    filled = form(schedule=str(daily.pk), params='{"tickerId": "db:tickr:all:id"}')

    text = words(root.post(PREVIEW, filled))

    assert "params.tickerId : character 4: unknown table &quot;tickr&quot;, did you mean ticker?" in text
