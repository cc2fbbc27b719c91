"""Deliverables and their periods in the admin."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from django.test import Client

from activities import cancellation
from activities.models import Activity
from pipelines import deliverables, versions
from pipelines.models import Deliverable, DeliverablePeriod, PipelineRun
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.browsing import list_url, messages_of, page_url, run_action, visible_text
from tests.cases import in_one_test
from tests.engine import Engine

PLAN = {"items": [{"pipeline": "flow", "name": "Bees"}, {"pipeline": "flow"}]}


@pytest.fixture
def blog(engine: Engine, tenant: Tenant) -> Deliverable:
    steps = [{"id": "a", "agent_role": "qa"}]
    versions.save(tenant.pk, {"key": "flow", "name": "Flow", "steps": steps}, actor="test")
    deliverable, _ = deliverables.create(tenant.pk, {"key": "blog", "name": "Blog", "pipelines": ["flow"]})
    return deliverable


@pytest.fixture
def may(tenant: Tenant, blog: Deliverable) -> DeliverablePeriod:
    (period,) = deliverables.start_new_periods(tenant.pk, today=date(2026, 5, 1))
    return period


def form(**members: Any) -> dict[str, Any]:
    return {"name": "Blog", "status": "active", "pipelines": '["flow"]', "params": "{}", **members}


def reloaded(tenant: Tenant, row: Any) -> Any:
    with tenant_scope(tenant.pk):
        return type(row).objects.get(pk=row.pk)


def test_a_deliverable_can_be_added_and_changed(tenant: Tenant, blog: Deliverable, root: Client) -> None:
    added = root.post(
        f"{list_url(Deliverable)}add/",
        form(tenant=str(tenant.pk), key="ads", name="Ads", params='{"tone": "loud"}'),
    )
    changed = root.post(page_url(blog), form(name="News", status="paused"))

    assert (added.status_code, changed.status_code) == (302, 302)
    with tenant_scope(tenant.pk):
        ads = Deliverable.objects.get(key="ads")
    assert (ads.name, ads.params, ads.version) == ("Ads", {"tone": "loud"}, 1)
    now = reloaded(tenant, blog)
    assert (now.key, now.name, now.status, now.version) == ("blog", "News", "paused", 2)
    assert root.get(page_url(ads)).status_code == 200


@in_one_test(
    ("pipelines", "fault"),
    [
        ('["none"]', "There is no pipeline"), ("[]", "is required"), ('"flow"', "Enter a list of keys"),
        ("[1]", "Enter a list of keys"), ("[", "The text is not valid JSON"),
    ],
)  # fmt: skip
def test_unknown_or_malformed_pipelines_are_refused(
    blog: Deliverable, tenant: Tenant, root: Client, pipelines: str, fault: str
) -> None:
    assert fault in visible_text(root.post(page_url(blog), form(pipelines=pipelines)))
    assert reloaded(tenant, blog).version == 1


def test_the_button_starts_the_current_month_once(tenant: Tenant, blog: Deliverable, root: Client) -> None:
    question = root.get(f"/admin/pipelines/deliverable/{blog.pk}/start/")
    for _ in range(2):
        run_action(root, Deliverable, "start_selected", blog, confirmed="1")

    assert "Start the current month" in visible_text(question)
    with tenant_scope(tenant.pk):
        assert DeliverablePeriod.objects.count() == Activity.objects.count() == 1


def test_a_period_shows_its_plan_faults_and_progress(
    tenant: Tenant, may: DeliverablePeriod, root: Client, engine: Engine
) -> None:
    with tenant_scope(tenant.pk):
        DeliverablePeriod.objects.update(plan_faults=[{"path": "items[0]", "message": "must be an object"}])
    before = visible_text(root.get(page_url(may)))
    # A planner at work could not be replaced.
    deliverables.cancel_period(tenant.pk, may.pk, actor="ann")
    with tenant_scope(tenant.pk):
        DeliverablePeriod.objects.update(status="planning")
    deliverables.accept_plan(tenant.pk, may.pk, PLAN, actor="ann")

    listed, page = visible_text(root.get(list_url(DeliverablePeriod))), visible_text(root.get(page_url(may)))

    assert "items[0] must be an object" in before
    assert "Ask the planner again" in before
    assert "May 2026" in listed
    assert "0 of 2 completed" in listed
    assert "Bees" in page
    assert "Ask the planner again" not in page
    with tenant_scope(tenant.pk):
        run = PipelineRun.objects.get(plan_item=0)
    assert "2026-05" in visible_text(root.get(page_url(run)))


def test_a_cancelled_planner_can_be_asked_again_but_not_one_at_work(
    tenant: Tenant, may: DeliverablePeriod, root: Client
) -> None:
    refused = run_action(root, DeliverablePeriod, "ask_again_selected", may, confirmed="1")
    assert any("is still planning" in message for message in messages_of(refused))
    cancellation.cancel(tenant.pk, may.planner_activity_id, actor="ann")
    assert "at risk" in visible_text(root.get(list_url(DeliverablePeriod)))

    run_action(root, DeliverablePeriod, "ask_again_selected", may, confirmed="1")

    assert reloaded(tenant, may).planner_activity_id != may.planner_activity_id
    assert not reloaded(tenant, may).at_risk


def test_a_period_can_be_cancelled_with_a_reason(
    tenant: Tenant, may: DeliverablePeriod, root: Client
) -> None:
    run_action(root, DeliverablePeriod, "cancel_selected", may, confirmed="1", notes="No budget.")

    assert reloaded(tenant, may).status == "cancelled"
    with tenant_scope(tenant.pk):
        assert Activity.objects.get().cancel_reason == "No budget."
    assert "Cancel the period" not in visible_text(root.get(page_url(may)))
