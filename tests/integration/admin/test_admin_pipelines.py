"""Pipelines in the admin: edited as text in versions, and their runs as pictures."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from activities.models import Activity
from pipelines import versions
from pipelines.models import Pipeline, PipelineRun, PipelineVersion
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.browsing import BRIEF, list_url, no_inlines, page_url, run_action
from tests.cases import in_one_test


def test_a_run_shows_the_status_of_its_steps(run: PipelineRun, root: Client) -> None:
    page = root.get(page_url(run)).content.decode()

    assert '<svg xmlns="http://www.w3.org/2000/svg" class="pipeline-picture"' in page
    assert "Needs approval" in page
    assert re.search(r'<a href="/admin/activities/activity/[0-9a-f-]+/change/">', page), (
        "steps lead to their activities"
    )


def test_cancelling_a_run_cancels_its_activities(run: PipelineRun, tenant: Tenant, root: Client) -> None:
    run_action(root, PipelineRun, "cancel_selected", run, confirmed="1", notes="stop")

    with tenant_scope(tenant.pk):
        assert PipelineRun.objects.get(pk=run.pk).status == "cancelled"
        assert not Activity.objects.filter(pipeline_run_id=run.pk, status="awaiting_approval").exists()
    assert "Cancel the run" not in root.get(page_url(run)).content.decode()


def test_a_pipeline_can_be_added_as_text(tenant: Tenant, root: Client) -> None:
    text = "key: fresh\nname: Fresh\nsteps:\n  - {id: one, agent_role: qa}\n"

    answer = root.post(
        f"{list_url(Pipeline)}add/", {"tenant": str(tenant.pk), "enabled": "on", "definition": text}
    )

    assert answer.status_code == 302
    pipeline = _pipeline(tenant)
    assert (pipeline.key, pipeline.name, pipeline.latest, pipeline.enabled) == ("fresh", "Fresh", 1, True)
    with tenant_scope(tenant.pk):
        assert PipelineVersion.objects.get().created_by == "user:root"


def test_every_error_of_a_definition_is_shown_with_its_path(
    run: PipelineRun, tenant: Tenant, root: Client
) -> None:
    text = "key: brief\nname: Brief\nsteps:\n  - {id: a, agent_role: nobody}\n  - {id: b, agent_role: qa, depends_on: [c]}\n"

    page = _save(root, _pipeline(tenant), text).content.decode()

    assert "steps[0].agent_role: unknown" in page
    assert "steps[1].depends_on[0]" in page
    assert _pipeline(tenant).latest == 1


@in_one_test(
    ("text", "fault"),
    [
        ("steps: [", "definition.yaml: line "),
        ("{", "definition.json: line "),
        ("key: other\nname: Other\nsteps:\n  - {id: a, agent_role: qa}\n", "key: must stay"),
    ],
)
def test_text_that_is_not_a_definition_of_this_pipeline_is_refused(
    text: str, fault: str, run: PipelineRun, tenant: Tenant, root: Client
) -> None:
    assert fault in _save(root, _pipeline(tenant), text).content.decode()


def test_a_changed_definition_is_a_new_version_and_an_equal_one_is_not(
    run: PipelineRun, tenant: Tenant, root: Client
) -> None:
    pipeline = _pipeline(tenant)
    text = root.get(page_url(pipeline)).context["adminform"].form.initial["definition"]
    assert "depends_on: [research]" in text

    assert _save(root, pipeline, text).status_code == 302
    assert _pipeline(tenant).latest == 1

    assert _save(root, pipeline, text.replace("name: Brief", "name: Better brief")).status_code == 302
    assert (_pipeline(tenant).latest, _pipeline(tenant).name) == (2, "Better brief")
    with tenant_scope(tenant.pk):
        assert PipelineRun.objects.get(pk=run.pk).version.number == 1, "a run keeps its version"


def test_the_second_of_two_concurrent_edits_is_refused(
    run: PipelineRun, tenant: Tenant, root: Client
) -> None:
    pipeline = _pipeline(tenant)
    text = root.get(page_url(pipeline)).context["adminform"].form.initial["definition"]
    versions.save(tenant.pk, {**BRIEF, "name": "Theirs"}, actor="user:mia")

    answer = _save(root, pipeline, text.replace("name: Brief", "name: Mine"), expected="1")

    assert answer.status_code == 200
    form = answer.context["adminform"].form
    assert "This is now at version 2." in form.non_field_errors()[0]
    assert "name: Mine" in form["definition"].value(), "the text is kept"
    assert (_pipeline(tenant).latest, _pipeline(tenant).name) == (2, "Theirs")


def test_a_run_that_is_started_in_the_admin_knows_who_started_it(
    run: PipelineRun, tenant: Tenant, root: Client
) -> None:
    run_action(root, Pipeline, "run_selected", _pipeline(tenant), confirmed="1", notes="{}")

    with tenant_scope(tenant.pk):
        started = PipelineRun.objects.exclude(pk=run.pk).get()
    assert started.created_by == "user:root"
    assert started.requested_identity == f"user:{User.objects.get(username='root').pk}"


def test_a_pipeline_can_be_disabled_from_the_list(run: PipelineRun, tenant: Tenant, root: Client) -> None:
    run_action(root, Pipeline, "disable_selected", _pipeline(tenant))

    assert _pipeline(tenant).enabled is False


def _save(browser: Client, pipeline: Pipeline, definition: str, **fields: Any) -> HttpResponse:
    form = browser.get(page_url(pipeline)).context["adminform"].form
    sent = {"enabled": "on", "definition": definition, "expected": form.initial["expected"], **fields}
    return browser.post(page_url(pipeline), sent | no_inlines("versions"))


def _pipeline(tenant: Tenant) -> Pipeline:
    with tenant_scope(tenant.pk):
        return Pipeline.objects.get()


@pytest.mark.filterwarnings("error::django.core.paginator.UnorderedObjectListWarning")
def test_the_pipelines_that_the_form_of_a_schedule_offers_are_in_order(tenant: Tenant, root: Client) -> None:
    """They are fetched in pages of twenty. Without an order one may be on two pages and another on none."""
    for name in ("Bees", "Ants"):
        with tenant_scope(tenant.pk):
            versions.save(tenant.pk, {**BRIEF, "key": name.lower(), "name": name}, actor="test")

    answer = root.get(
        reverse("admin:autocomplete"),
        {"app_label": "pipelines", "model_name": "schedule", "field_name": "pipeline", "term": ""},
    )

    assert [each["text"] for each in answer.json()["results"]] == ["Ants", "Bees"]
