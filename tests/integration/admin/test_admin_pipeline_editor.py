"""The editor of pipelines: the server's checks, restored versions, manual runs, and the page in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from agents.models import Agent
from pipelines import submission, versions
from pipelines.admin.pipeline import as_written
from pipelines.definition import load
from pipelines.models import ActivityTemplate, Pipeline, PipelineRun, PipelineVersion, Schedule, StepRun
from tenants.context import system_scope, tenant_scope
from tenants.models import Membership, Tenant
from tests.browsing import BRIEF, list_url, messages_of, no_inlines, page_url, run_action, visible_text
from tests.cases import in_one_test
from tests.pages import page_of
from tests.registry import temporary_agent

CHECK = "/admin/pipelines/pipeline/check/"


@pytest.fixture
def pipeline(tenant: Tenant) -> Pipeline:
    saved: Pipeline = versions.save(tenant.pk, BRIEF, actor="test").pipeline
    return saved


def check(root: Client, tenant: Tenant | None, text: str, **fields: str) -> dict[str, Any]:
    answer = root.post(CHECK, {"text": text, "tenant": str(tenant.pk) if tenant else "", **fields})
    assert answer.status_code == 200
    return dict(answer.json())


def latest(pipeline: Pipeline) -> int:
    with tenant_scope(pipeline.tenant_id):
        number: int = Pipeline.objects.get(pk=pipeline.pk).latest
    return number


# The server's checks


def test_a_checked_definition_is_returned_as_data_text_and_picture_but_not_saved(
    tenant: Tenant, root: Client
) -> None:
    answer = check(root, tenant, json.dumps(BRIEF))

    assert (answer["definition"], answer["faults"]) == (BRIEF, [])
    assert load(answer["text"], filename="a.yaml") == BRIEF
    assert answer["text"].startswith("key: brief\nname: Brief\nsteps:\n  - id: research\n")
    assert answer["svg"].startswith('<div class="orc-picture">')
    assert "<title>research · qa</title>" in answer["svg"]
    with tenant_scope(tenant.pk):
        assert not Pipeline.objects.filter().exists()


def test_every_error_has_its_path_and_the_input_is_kept(tenant: Tenant, root: Client) -> None:
    steps = [
        {"id": "a", "agent_role": "nobody", "color": "red"},
        {"id": "b", "agent_role": "qa", "params": "{not json"},
    ]

    answer = check(root, tenant, json.dumps({"key": "k", "name": "N", "steps": steps}))

    assert {fault["path"] for fault in answer["faults"]} == {
        "steps[0].agent_role",
        "steps[0].color",
        "steps[1].params",
    }
    assert answer["definition"]["steps"] == steps
    assert load(answer["text"], filename="a.yaml")["steps"] == steps
    assert answer["svg"] is None


@in_one_test(
    ("steps", "path"),
    [
        (
            [
                {"id": "a", "agent_role": "qa", "depends_on": ["b"]},
                {"id": "b", "agent_role": "qa", "depends_on": ["a"]},
            ],
            "steps",
        ),
        ([{"id": "a", "agent_role": "qa"}, {"id": "a", "agent_role": "qa"}], "steps[1].id"),
        ([{"id": "a", "agent_role": "qa", "when": "steps.b.data ="}], "steps[0].when"),
    ],
)
def test_errors_between_steps_have_their_path(
    steps: list[dict[str, Any]], path: str, tenant: Tenant, root: Client
) -> None:
    faults = check(root, tenant, json.dumps({"key": "k", "name": "N", "steps": steps}))["faults"]

    assert any(fault["path"].startswith(path) for fault in faults), faults


def test_text_that_cannot_be_parsed_has_no_list_of_steps(tenant: Tenant, root: Client) -> None:
    answer = check(root, tenant, "steps: [")

    assert (answer["definition"], answer["text"], answer["svg"]) == (None, None, None)
    assert "line " in answer["faults"][0]["message"]


def test_the_check_asks_for_a_missing_tenant(root: Client) -> None:
    answer = check(root, None, json.dumps(BRIEF))

    assert (answer["faults"], answer["svg"]) == ([], None)
    assert "Choose the tenant" in answer["missing"]


def test_templates_of_the_tenant_are_offered(tenant: Tenant, other_tenant: Tenant, root: Client) -> None:
    for owner, key in ((tenant, "mine"), (other_tenant, "theirs")):
        with tenant_scope(owner.pk):
            ActivityTemplate.objects.create(tenant=owner, key=key, name=key, agent_role="qa")

    assert check(root, tenant, json.dumps(BRIEF))["templates"] == ["mine"]


def test_a_key_that_is_taken_or_changed_is_an_error(tenant: Tenant, pipeline: Pipeline, root: Client) -> None:
    (taken,) = check(root, tenant, json.dumps(BRIEF))["faults"]
    (changed,) = check(root, tenant, json.dumps({**BRIEF, "key": "other"}), pipeline=str(pipeline.pk))[
        "faults"
    ]

    assert (taken["path"], changed["path"]) == ("key", "key")
    assert check(root, tenant, json.dumps(BRIEF), pipeline=str(pipeline.pk))["faults"] == []


def test_hostile_text_is_escaped_in_the_picture(tenant: Tenant, root: Client) -> None:
    hostile = {**BRIEF, "name": "</title><script>alert(1)</script>"}

    assert "<script" not in check(root, tenant, json.dumps(hostile))["svg"]


def test_only_those_who_may_change_a_pipeline_may_check_it_and_only_by_post(
    tenant: Tenant, root: Client
) -> None:
    guarded = Client(enforce_csrf_checks=True)
    guarded.force_login(User.objects.get(username="root"))
    fields = {"text": json.dumps(BRIEF), "tenant": str(tenant.pk)}

    assert staff("mia", tenant, "admin").post(CHECK, fields).json()["faults"] == []
    assert staff("vera", tenant, "viewer").post(CHECK, fields).status_code == 403
    assert guarded.post(CHECK, fields).status_code == 403
    assert root.get(CHECK).status_code == 405
    assert Client().post(CHECK).status_code == 302


def test_the_check_reveals_nothing_of_another_tenant(tenant: Tenant, other_tenant: Tenant) -> None:
    with tenant_scope(other_tenant.pk):
        ActivityTemplate.objects.create(tenant=other_tenant, key="theirs", name="theirs", agent_role="qa")
    mia = staff("mia", tenant, "admin")

    foreign, nowhere = (
        check(mia, each, json.dumps(BRIEF)) for each in (other_tenant, Tenant(slug="nowhere"))
    )

    assert foreign == nowhere
    assert "Choose the tenant" in foreign["missing"]


def staff(name: str, tenant: Tenant, role: str) -> Client:
    user = User.objects.create_user(name, is_staff=True)
    with system_scope():
        Membership.objects.create(tenant=tenant, user=user, role=role)
    browser = Client()
    browser.force_login(user)
    return browser


@pytest.mark.parametrize(
    "value",
    [
        "no",
        "1e3",
        "12:30",
        "2026-01-01",
        "0x10",
        "+1",
        ".5",
        "-",
        "~",
        "",
        "a\nb",
        "a\nb\n",
        " a\nb",
        "# a",
        "a: b",
        "é\n",
        "null",
        "1_000",
    ],
)
def test_written_yaml_is_read_back_unchanged(value: str) -> None:
    data = {
        "key": "k",
        "steps": [{"id": "a", "params": {"x": value, "n": [1, 2.5, None, True], value or "k": {}}}],
        "zeta": 1,
    }

    assert load(as_written(data), filename="a.yaml") == data


# Without scripts


def test_without_scripts_a_definition_can_be_checked_without_saving(pipeline: Pipeline, root: Client) -> None:
    text = as_written({**BRIEF, "name": "Other"})

    page = root.post(
        page_url(pipeline), {"definition": text, "enabled": "on", "_check": "1"} | no_inlines("versions")
    )

    assert "Checked but not saved: there are no errors." in visible_text(page)
    assert latest(pipeline) == 1


def test_enabled_in_the_text_is_refused_because_the_form_has_a_field_for_it(
    pipeline: Pipeline, root: Client
) -> None:
    text = as_written({**BRIEF, "enabled": False})

    page = root.post(page_url(pipeline), {"definition": text, "enabled": "on"} | no_inlines("versions"))

    assert "enabled: leave it out, and use the field Enabled of this form" in visible_text(page)
    assert latest(pipeline) == 1


# Versions, runs, schedules


def test_an_earlier_version_can_be_restored_as_the_newest(
    tenant: Tenant, pipeline: Pipeline, root: Client
) -> None:
    versions.save(tenant.pk, {**BRIEF, "name": "Worse"}, actor="test")
    with tenant_scope(tenant.pk):
        first = PipelineVersion.objects.get(number=1)
    address = f"/admin/pipelines/pipelineversion/{first.pk}/restore/"
    assert address in root.get(page_url(pipeline)).content.decode()
    assert "saves the definition again, as a new version" in visible_text(root.get(address))
    assert latest(pipeline) == 2, "opening the page changes nothing"

    run_action(root, PipelineVersion, "restore_selected", first, confirmed="1")

    assert latest(pipeline) == 3
    with tenant_scope(tenant.pk):
        newest = PipelineVersion.objects.get(number=3)
    assert (newest.digest, newest.created_by) == (first.digest, "user:root")


def test_an_earlier_version_whose_agent_is_gone_cannot_be_restored(tenant: Tenant, root: Client) -> None:
    with temporary_agent("scribe"):
        first = versions.save(
            tenant.pk, {"key": "k", "name": "N", "steps": [{"id": "a", "agent_role": "scribe"}]}, actor="test"
        )
    versions.save(
        tenant.pk, {"key": "k", "name": "N", "steps": [{"id": "a", "agent_role": "qa"}]}, actor="test"
    )

    answer = run_action(root, PipelineVersion, "restore_selected", first, confirmed="1")

    assert "steps[0].agent_role: unknown" in messages_of(answer)[-1]
    assert latest(first.pipeline) == 2


def test_a_run_can_be_started_with_parameters(
    tenant: Tenant, pipeline: Pipeline, engine: Any, root: Client
) -> None:
    assert "Parameters, as a JSON object" in visible_text(
        root.get(f"/admin/pipelines/pipeline/{pipeline.pk}/run/")
    )

    answer = run_action(root, Pipeline, "run_selected", pipeline, confirmed="1", notes='{"topic": "bees"}')

    with tenant_scope(tenant.pk):
        run = PipelineRun.objects.get()
    assert (run.params, run.created_by) == ({"topic": "bees"}, "user:root")
    assert any(str(run.pk) in message for message in messages_of(answer))


@pytest.mark.parametrize("entered", ["[1]", "{", '"a"'])
def test_parameters_that_are_not_an_object_start_nothing(
    entered: str, tenant: Tenant, pipeline: Pipeline, root: Client
) -> None:
    answer = run_action(root, Pipeline, "run_selected", pipeline, confirmed="1", notes=entered)

    assert "parameters" in messages_of(answer)[-1]
    with tenant_scope(tenant.pk):
        assert not PipelineRun.objects.filter().exists()


def test_a_pipeline_links_to_its_runs_and_to_the_form_of_a_schedule(pipeline: Pipeline, root: Client) -> None:
    runs = root.get(f"/admin/pipelines/pipeline/{pipeline.pk}/runs/")
    schedule = root.get(f"/admin/pipelines/pipeline/{pipeline.pk}/schedule/")

    assert root.get(runs["Location"]).status_code == 200
    assert schedule.status_code == 302
    if "schedule/add" in schedule["Location"]:
        assert (
            f"target_type=pipeline&pipeline={pipeline.pk}&tenant={pipeline.tenant_id}" in schedule["Location"]
        )


def test_disabling_a_pipeline_names_the_schedules_that_need_it(pipeline: Pipeline, root: Client) -> None:
    with tenant_scope(pipeline.tenant_id):
        Schedule.objects.create(
            tenant_id=pipeline.tenant_id,
            name="Daily",
            cron="0 8 * * *",
            target_type="pipeline",
            pipeline=pipeline,
        )

    answer = run_action(root, Pipeline, "disable_selected", pipeline)

    assert "Brief is switched off and still needed by schedules: Daily." in messages_of(answer)


def test_a_run_shows_branches_as_one_node_and_why_a_step_was_skipped(
    tenant: Tenant, pipeline: Pipeline, engine: Any, root: Client
) -> None:
    run = submission.start_run(tenant.pk, "brief", submission.NewRun(), actor="test")
    with tenant_scope(tenant.pk):
        steps = StepRun.objects.filter(run_id=run.pk)
        steps.filter(step="research").update(
            activity_id=None, status="active", branches=50, failed_branches=2, unsettled_branches=3
        )
        steps.filter(step="write").update(status="skipped", reason="condition")

    page = root.get(page_url(run)).content.decode()

    assert "2 failed · 3 running" in page
    assert "\u00d7 50" in page
    assert "Condition not met" in page
    branches = f"/admin/pipelines/steprun/?run__id__exact={run.pk}&step__exact=research"
    assert branches.replace("&", "&amp;") in page
    assert root.get(branches).status_code == 200


# In a browser


@pytest.fixture
def page(pipeline: Pipeline, root: Client) -> Iterator[Any]:
    """The page of the pipeline in a real browser. Errors in its console fail the test."""
    with page_of(User.objects.get(username="root"), width=1400, height=1000) as tab:
        tab.set_default_timeout(10_000)
        tab.goto(page_url(pipeline))
        tab.get_by_text("No errors").wait_for()
        yield tab


@pytest.mark.ui
def test_steps_can_be_added_renamed_and_saved_as_a_new_version(
    page: Any, tenant: Tenant, pipeline: Pipeline
) -> None:
    page.get_by_role("button", name="Add a step").click()
    added = page.locator(".orc-step-list > li").nth(2)
    added.locator("[data-field=id]").fill("publish")
    added.locator("[data-field=agent_role]").select_option("seo")
    added.locator("[data-field=params]").fill('{"tone": "calm"')
    page.get_by_text("steps[2].params: must be an object").wait_for()
    added.locator("[data-field=params]").fill('{"tone": "calm"}')
    added.locator("[data-field=depends_on]").select_option("these")
    added.get_by_label("research", exact=True).check()
    page.get_by_text("No errors").wait_for()
    assert page.locator(".orc-picture").get_by_text("publish", exact=True).count() == 1, "the picture follows"
    page.locator(".orc-step-list > li").nth(0).locator("[data-field=id]").fill("study")
    page.locator(".orc-step-list > li").nth(0).locator("[data-field=id]").blur()
    page.get_by_text("No errors").wait_for()
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url("**/pipelines/pipeline/")

    with tenant_scope(tenant.pk):
        newest = PipelineVersion.objects.get(number=2).definition["steps"]
    assert [(step["id"], step["depends_on"]) for step in newest] == [
        ("study", []), ("write", ["study"]), ("publish", ["study"]),
    ]  # fmt: skip
    assert (newest[2]["agent_role"], newest[2]["params"]) == ("seo", {"tone": "calm"})


@pytest.mark.ui
def test_the_list_of_steps_and_the_text_stay_equal(page: Any) -> None:
    area = page.locator("textarea[name=definition]")
    page.locator(".orc-step-list > li").nth(1).get_by_role("button", name="Remove the step").click()
    page.get_by_text("No errors").wait_for()
    page.get_by_role("tab", name="Text").click()
    assert area.input_value() == "key: brief\nname: Brief\nsteps:\n  - id: research\n    agent_role: qa\n"

    area.fill("key: brief\nname: Brief\nsteps:\n  - {id: a, agent_role: nobody}\n")
    page.locator(".orc-faults").get_by_text('steps[0].agent_role: unknown role "nobody"').wait_for()
    assert page.locator(".orc-picture").is_hidden(), "no outdated picture next to an error"
    page.get_by_role("tab", name="Steps").click()
    first = page.locator(".orc-step-list > li").nth(0)
    assert first.locator("[data-field=agent_role]").input_value() == "nobody"

    page.get_by_role("tab", name="Text").click()
    area.fill("steps: [")
    page.get_by_text("1 error").wait_for()
    assert page.get_by_role("tab", name="Steps").is_disabled(), "there is nothing to list"

    area.fill("key: brief\nname: Brief\nsteps:\n  - {id: repaired, agent_role: qa}\n")
    page.get_by_text("No errors").wait_for()
    assert page.locator(".orc-picture").get_by_text("repaired", exact=True).is_visible()


def test_the_editor_offers_the_enabled_roles(pipeline: Pipeline, root: Client) -> None:
    config = root.get(page_url(pipeline)).context["adminform"].form.fields["definition"].widget.config

    with system_scope():
        assert config["roles"] == sorted(Agent.objects.filter(enabled=True).values_list("role", flat=True))
    assert list_url(Pipeline) in config["check"]
