"""Submitting one activity over the API: what is stored, and which errors name which field."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from rest_framework.exceptions import ValidationError

from activities.models import Activity, Wake
from activities.schemas import arguments_of, to_stored
from agents import configuration
from agents.models import Agent, AgentConfig
from tenants.context import tenant_scope
from tests.answers import version_of
from tests.api_objects import create_deliverable
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.activities_api.submitted import ACTIVITIES, body, count, faults

pytestmark = pytest.mark.usefixtures("engine")
CONTRACT = {
    "id", "name", "description", "status", "assignee_type", "agent_role", "human_role", "priority", "wake_reason", "params",
    "input_ref", "output_ref", "parent", "link_kind", "pipeline_run", "step", "round", "attempts", "stalls", "not_before",
    "reviewer_notes", "blocker_type", "blocker_message", "waiting_for", "created_at", "started_at", "finished_at", "metadata",
}  # fmt: skip


def test_a_whole_number_with_a_point_is_a_priority(api):
    assert api("operator").post(ACTIVITIES, body(priority=5.0)).json()["priority"] == 5


def test_the_response_to_a_submission_is_the_whole_activity_with_its_address_and_version(api, tenant):
    response = api("operator").post(
        ACTIVITIES, body(description="For bees", params={"topic": "bees"}, metadata={"ticket": 7})
    )

    activity = response.json()
    assert response.status_code == 201
    assert set(activity) >= CONTRACT | {"version", "allowed_actions", "link"}
    assert (activity["status"], activity["assignee_type"], activity["priority"], activity["round"]) == (
        "created",
        "agent",
        10,
        1,
    )
    assert (activity["params"], activity["metadata"]) == ({"topic": "bees"}, {"ticket": 7})
    assert activity["waiting_for"]["code"] == "queued"
    assert activity["allowed_actions"] == ["reassign", "cancel", "run-now"]
    assert response["Location"] == activity["link"] == f"{ACTIVITIES}{activity['id']}/"
    assert version_of(response) == "1"
    assert api("operator").get(response["Location"]).json() == activity


def test_every_field_of_a_submission_is_stored(api, tenant):
    start = datetime.now(UTC) + timedelta(hours=1)
    fields = body(
        priority=3, not_before=start.isoformat(), expires_at=(start + timedelta(hours=1)).isoformat(), dedup_key="k-1", group_key="site",
        deliverable=create_deliverable(tenant), input={"content": "text", "data": [1]}, max_attempts=7, timeout_seconds=90,
        requires_approval=True,
    )  # fmt: skip

    activity = api().post(ACTIVITIES, fields).json()

    for name in (
        "priority",
        "dedup_key",
        "group_key",
        "deliverable",
        "max_attempts",
        "timeout_seconds",
        "requires_approval",
    ):
        assert activity[name] == fields[name]
    assert datetime.fromisoformat(activity["not_before"]) == start
    assert activity["waiting_for"]["code"] == "not_before"
    with tenant_scope(tenant.pk):
        assert Activity.objects.get().input == {"content": "text", "data": [1]}


def test_a_null_counts_as_absent(api, tenant):
    response = api().post(
        ACTIVITIES, body(description=None, priority=None, input=None, human_role=None, dedup_key=None)
    )

    assert response.status_code == 201
    assert response.json()["priority"] == 10


def test_work_for_a_person_goes_to_the_inbox_and_waits_for_that_person(api, tenant):
    activity = api().post(ACTIVITIES, {"name": "Read it", "human_role": "editor"}).json()

    assert (activity["assignee_type"], activity["human_role"], activity["agent_role"]) == (
        "human",
        "editor",
        None,
    )
    assert activity["waiting_for"]["code"] == "human"
    assert activity["allowed_actions"] == ["reassign", "start", "complete", "cancel"]


@in_one_test(
    ("fields", "stored"),
    [
        ({"priority": "urgent"}, 1), ({"priority": "background"}, 20), ({"priority": 20}, 20),
        ({"priority": 2, "priority_scale": "payload"}, 1), ({"priority": 0, "priority_scale": "payload"}, 10),
        ({"priority": 0, "priority_scale": "ade"}, 1), ({"priority": 5, "priority_scale": "ade"}, 10),
        ({"priority": 9, "priority_scale": "ade"}, 20), ({"priority": 1, "priority_scale": "ticket"}, 1),
        ({"priority": 5, "priority_scale": "ticket"}, 10), ({"priority": 10, "priority_scale": "ticket"}, 20),
    ],
)  # fmt: skip
def test_a_priority_is_read_on_the_scale_that_the_caller_names(api, tenant, fields, stored):
    assert api().post(ACTIVITIES, body(**fields)).json()["priority"] == stored


@pytest.mark.parametrize(("scale", "values"), [("ade", range(10)), ("ticket", range(1, 11))])
def test_a_scale_keeps_the_order_of_its_values(scale, values):
    converted = [to_stored(value, scale) for value in values]

    assert converted == sorted(set(converted))


@in_one_test(
    ("fields", "path"),
    [
        ({"name": ""}, "name"), ({"name": " \n"}, "name"), ({"name": "n" * 201}, "name"), ({"name": 5}, "name"),
        ({"name": None}, "name"), ({"agent_role": "no-such-role"}, "agent_role"), ({"agent_role": None}, "agent_role"),
        ({"human_role": "editor"}, "human_role"), ({"params": []}, "params"), ({"params": "x"}, "params"),
        ({"metadata": 1}, "metadata"), ({"priority": 0}, "priority"), ({"priority": 21}, "priority"),
        ({"priority": "5"}, "priority"), ({"priority": True}, "priority"), ({"priority": 3.5}, "priority"),
        ({"priority": "later"}, "priority"), ({"priority": 3, "priority_scale": "payload"}, "priority"),
        ({"priority": 0, "priority_scale": "ticket"}, "priority"), ({"priority_scale": "mine"}, "priority_scale"),
        ({"priority_scale": "ade"}, "priority_scale"), ({"priority_scale": "ade", "priority": None}, "priority_scale"),
        ({"not_before": "2030-01-01T00:00:00"}, "not_before"), ({"not_before": "soon"}, "not_before"),
        ({"not_before": 1893456000}, "not_before"), ({"not_before": "2030-13-01T00:00:00Z"}, "not_before"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2030-01-01T00:00:00Z", "not_before": "2030-01-01T00:00:00Z"}, "expires_at"),
        ({"dedup_key": "k" * 201}, "dedup_key"), ({"group_key": ""}, "group_key"), ({"deliverable": "x"}, "deliverable"),
        ({"input": "text"}, "input"), ({"input": {"content": 5}}, "input.content"), ({"input": {"text": "x"}}, "input.text"),
        ({"input_ref": "x"}, "input_ref"), ({"max_attempts": 0}, "max_attempts"), ({"max_attempts": 51}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"), ({"timeout_seconds": 86401}, "timeout_seconds"),
        ({"timeout_seconds": 1.5}, "timeout_seconds"), ({"requires_approval": "yes"}, "requires_approval"),
        ({"requires_approval": 1}, "requires_approval"), ({"nmae": "x"}, "nmae"), ({"status": "done"}, "status"),
    ],
)  # fmt: skip
def test_every_error_names_its_field_and_nothing_is_created(api, tenant, fields, path):
    assert path in faults(api().post(ACTIVITIES, body(**fields)))
    assert count(tenant) == 0


def test_all_errors_are_reported_at_once(api, tenant):
    errors = faults(api().post(ACTIVITIES, {"nmae": "x", "priority": "x", "params": 1, "timeout_seconds": 0}))

    assert set(errors) == {"name", "nmae", "priority", "params", "timeout_seconds", "agent_role"}


def test_members_that_do_not_fit_together_are_reported_with_those_that_are_invalid_alone(api, tenant):
    body = {
        "name": "",
        "agent_role": "no-such-role",
        "priority": 99,
        "group_scope": "tenant",
        "not_before": "2031-01-01T00:00:00Z",
        "expires_at": "2030-01-01T00:00:00Z",
        "due_seconds": "soon",
        "on_timeout": "approve",
    }

    errors = faults(api().post(ACTIVITIES, body))

    assert set(errors) == body.keys() - {"not_before"}
    assert faults(api().post(ACTIVITIES, {"name": "x", "human_role": ""})).keys() == {"human_role"}


def test_work_without_a_role_is_refused(api, tenant):
    assert set(faults(api().post(ACTIVITIES, {"name": "x"}))) == {"agent_role"}


def test_new_work_for_a_role_that_the_tenant_has_switched_off_is_refused_and_other_tenants_submit_it(
    api, tenant, other_tenant
):
    waiting = api().post(ACTIVITIES, body(agent_role="qa")).json()["id"]
    with tenant_scope(tenant.pk):
        AgentConfig.objects.create(tenant_id=tenant.pk, agent_id="dev", enabled=False)
    successor = {"agent_role": "dev", "reason": "Busy."}
    choice = {"action": "reassign", "filter": {"ids": [waiting]}, "dry_run": True}
    refusal = "'dev' is switched off; PUT /api/v1/agent-configs/dev/ switches it on"

    for address, new, path in (
        (ACTIVITIES, body(agent_role="dev"), "agent_role"),
        ("/api/v1/subagents/", {"subagent_type": "dev", "prompt": "Look."}, "subagent_type"),
        ("/api/v1/mailboxes/m/items/", {"kind": "message", "text": "x", "agent_role": "dev"}, "agent_role"),
        (f"{ACTIVITIES}{waiting}/reassign/", successor, "agent_role"),
        (f"{ACTIVITIES}bulk/", {**choice, **successor}, "agent_role"),
    ):
        assert faults(api().post(address, new)) == {path: refusal}, address
    with pytest.raises(ValidationError) as refused:
        arguments_of("create_subtask", {"name": "x", "agent_role": "dev", "blocking": True}, tenant.pk)
    assert refused.value.detail == {"agent_role": [refusal]}
    assert api(tenant=other_tenant).post(ACTIVITIES, body(agent_role="dev")).status_code == 201


@in_one_test(
    ("name", "value"),
    [("requires_approval", True), ("files", ["src/**"]), ("not_before", "2030-01-01T00:00:00Z")],
)
def test_fields_for_agents_are_refused_for_people(api, tenant, name, value):
    assert set(faults(api().post(ACTIVITIES, {"name": "x", "human_role": "editor", name: value}))) == {name}


@pytest.fixture
def strict_role() -> Any:
    """A role whose agent has a schema for its parameters."""
    site = {"type": "object", "properties": {"url": {"type": "string"}}}
    members = {"topic": {"type": "string"}, "sites": {"type": "array", "items": site}}
    schema = {"type": "object", "required": ["topic"], "properties": members}
    Agent.objects.filter(role="seo").update(input_schema=schema)
    configuration.forget()
    yield "seo"
    Agent.objects.filter(role="seo").update(input_schema=None)
    configuration.forget()


def test_parameters_are_checked_against_the_schema_of_the_agent(api, tenant, strict_role):
    client = api()

    refused = client.post(
        ACTIVITIES, {"name": "x", "agent_role": strict_role, "params": {"sites": [{}, {"url": 5}]}}
    )

    assert set(faults(refused)) == {"params.topic", "params.sites[1].url"}
    assert (
        client.post(
            ACTIVITIES, {"name": "x", "agent_role": strict_role, "params": {"topic": "bees"}}
        ).status_code
        == 201
    )


@in_one_test(
    "schema",
    [{"type": "nonsense"}, {"$ref": "http://127.0.0.1:9/schema"}, ["x"], {"properties": 5}, {"pattern": "("}],
)
def test_an_invalid_schema_stops_no_work_and_fetches_nothing(api, tenant, strict_role, schema):
    Agent.objects.filter(role=strict_role).update(input_schema=schema)
    configuration.forget()

    assert (
        api().post(ACTIVITIES, {"name": "x", "agent_role": strict_role, "params": {"a": 1}}).status_code
        == 201
    )


def test_an_output_of_the_same_tenant_can_be_the_input(api, tenant, engine: Engine):
    engine.serve(tenant)
    (done,) = engine.submit(tenant)
    engine.drain()
    reference = str(engine.get(tenant, done).output_ref)

    assert api().post(ACTIVITIES, body(input_ref=reference)).json()["input_ref"] == reference


def test_the_output_of_a_person_can_be_the_input(api, tenant):
    client = api()
    task = client.post(ACTIVITIES, {"name": "Write", "human_role": "editor"}).json()
    done = client.post(f"{task['link']}complete/", {"output": {"content": "text"}}).json()

    assert client.post(ACTIVITIES, body(input_ref=done["output_ref"])).status_code == 201


def test_an_output_of_another_tenant_is_refused_like_one_that_does_not_exist(
    api, tenant, other_tenant, engine: Engine
):
    engine.serve(other_tenant)
    (done,) = engine.submit(other_tenant)
    engine.drain()
    foreign, nowhere = str(engine.get(other_tenant, done).output_ref), str(uuid4())
    client = api(tenant=tenant)

    assert faults(client.post(ACTIVITIES, body(input_ref=foreign))) == faults(
        client.post(ACTIVITIES, body(input_ref=nowhere))
    )
    assert faults(client.post(ACTIVITIES, [body(), body(input_ref=foreign)])) == {
        "[1].input_ref": "is not an output of this tenant"
    }
    assert count(tenant) == 0


def test_an_unknown_output_is_reported_with_the_other_errors(api, tenant):
    broken = body(name="", input_ref=str(uuid4()))

    assert faults(api().post(ACTIVITIES, broken)).keys() == {"name", "input_ref"}
    assert faults(api().post(ACTIVITIES, [body(), broken])).keys() == {"[1].name", "[1].input_ref"}


def test_input_and_input_ref_exclude_each_other(api, tenant):
    assert "input_ref" in faults(api().post(ACTIVITIES, body(input={"content": "x"}, input_ref=str(uuid4()))))


def test_work_with_the_dedup_key_of_expired_work_is_created_before_the_sweep_that_ends_that(api, tenant):
    client = api("operator")
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    first = client.post(ACTIVITIES, body(dedup_key="daily", expires_at=tomorrow)).json()
    with tenant_scope(tenant.pk):
        Activity.objects.filter(pk=first["id"]).update(expires_at=datetime.now(UTC) - timedelta(seconds=1))

    again = client.post(ACTIVITIES, body(dedup_key="daily", expires_at=tomorrow))

    assert (again.status_code, again.json()["dedup_key"]) == (201, "daily")
    with tenant_scope(tenant.pk):
        before = Activity.objects.get(pk=first["id"])
    assert (before.status, before.cancel_reason) == ("cancelled", "expired")


def test_the_wake_of_work_for_later_has_a_due_time(api, tenant):
    start = (datetime.now(UTC) + timedelta(hours=1)).isoformat()

    api().post(ACTIVITIES, body(not_before=start))

    with tenant_scope(tenant.pk):
        assert Wake.objects.get().due_at is not None
