"""Submitting over the API: what is kept, and what is refused by its path."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from activities.models import Activity, Wake
from activities.schemas import to_stored
from agents import configuration
from agents.models import Agent
from tenants.context import tenant_scope
from tests.api_objects import a_deliverable
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.activities_api.submitted import ACTIVITIES, body, count, faults

pytestmark = pytest.mark.usefixtures("engine")
CONTRACT = {
    "id", "name", "description", "status", "assignee_type", "agent_role", "human_role", "priority", "wake_reason", "params",
    "input_ref", "output_ref", "parent", "link_kind", "pipeline_run", "step", "round", "attempts", "stalls", "not_before",
    "reviewer_notes", "blocker_type", "blocker_message", "waiting_for", "created_at", "started_at", "finished_at", "metadata",
}  # fmt: skip


def test_a_submitted_activity_is_answered_in_full_with_its_place_and_its_version(api, tenant):
    made = api("operator").post(
        ACTIVITIES, body(description="For bees", params={"topic": "bees"}, metadata={"ticket": 7})
    )

    shown = made.json()
    assert made.status_code == 201
    assert set(shown) >= CONTRACT | {"version", "allowed_actions", "link"}
    assert (shown["status"], shown["assignee_type"], shown["priority"], shown["round"]) == (
        "created",
        "agent",
        10,
        1,
    )
    assert (shown["params"], shown["metadata"]) == ({"topic": "bees"}, {"ticket": 7})
    assert shown["waiting_for"]["code"] == "queued"
    assert shown["allowed_actions"] == ["reassign", "cancel"]
    assert made["Location"] == shown["link"] == f"{ACTIVITIES}{shown['id']}/"
    assert made["ETag"] == '"1"'
    assert api("viewer").get(made["Location"]).json() == shown


def test_every_member_that_may_be_given_is_kept(api, tenant):
    later = datetime.now(UTC) + timedelta(hours=1)
    given = body(
        priority=3, not_before=later.isoformat(), expires_at=(later + timedelta(hours=1)).isoformat(), dedup_key="k-1", group_key="site",
        deliverable=a_deliverable(tenant), input={"content": "text", "data": [1]}, max_attempts=7, timeout_seconds=90,
        requires_approval=True,
    )  # fmt: skip

    shown = api().post(ACTIVITIES, given).json()

    for name in (
        "priority",
        "dedup_key",
        "group_key",
        "deliverable",
        "max_attempts",
        "timeout_seconds",
        "requires_approval",
    ):
        assert shown[name] == given[name]
    assert datetime.fromisoformat(shown["not_before"]) == later
    assert shown["waiting_for"]["code"] == "not_before"
    with tenant_scope(tenant.pk):
        assert Activity.objects.get().input == {"content": "text", "data": [1]}


def test_a_null_counts_as_not_given(api, tenant):
    made = api().post(
        ACTIVITIES, body(description=None, priority=None, input=None, human_role=None, dedup_key=None)
    )

    assert made.status_code == 201
    assert made.json()["priority"] == 10


def test_work_for_a_person_goes_to_the_inbox_and_waits_for_that_person(api, tenant):
    shown = api().post(ACTIVITIES, {"name": "Read it", "human_role": "editor"}).json()

    assert (shown["assignee_type"], shown["human_role"], shown["agent_role"]) == ("human", "editor", None)
    assert shown["waiting_for"]["code"] == "human"
    assert shown["allowed_actions"] == ["reassign", "start", "complete", "cancel"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"priority": "urgent"}, 1), ({"priority": "background"}, 20), ({"priority": 20}, 20),
        ({"priority": 2, "priority_scale": "payload"}, 1), ({"priority": 0, "priority_scale": "payload"}, 10),
        ({"priority": 0, "priority_scale": "ade"}, 1), ({"priority": 5, "priority_scale": "ade"}, 10),
        ({"priority": 9, "priority_scale": "ade"}, 20), ({"priority": 1, "priority_scale": "ticket"}, 1),
        ({"priority": 5, "priority_scale": "ticket"}, 10), ({"priority": 10, "priority_scale": "ticket"}, 20),
    ],
)  # fmt: skip
def test_a_priority_may_be_given_on_the_scale_that_the_caller_names(api, tenant, given, kept):
    assert api().post(ACTIVITIES, body(**given)).json()["priority"] == kept


@pytest.mark.parametrize(("scale", "values"), [("ade", range(10)), ("ticket", range(1, 11))])
def test_a_scale_keeps_the_order_of_its_values(scale, values):
    converted = [to_stored(value, scale) for value in values]

    assert converted == sorted(set(converted))


@in_one_test(
    ("given", "path"),
    [
        ({"name": ""}, "name"), ({"name": " \n"}, "name"), ({"name": "n" * 201}, "name"), ({"name": 5}, "name"),
        ({"name": None}, "name"), ({"agent_role": "no-such-role"}, "agent_role"), ({"agent_role": None}, "agent_role"),
        ({"human_role": "editor"}, "human_role"), ({"params": []}, "params"), ({"params": "x"}, "params"),
        ({"metadata": 1}, "metadata"), ({"priority": 0}, "priority"), ({"priority": 21}, "priority"),
        ({"priority": "5"}, "priority"), ({"priority": True}, "priority"), ({"priority": 3.5}, "priority"),
        ({"priority": "later"}, "priority"), ({"priority": 3, "priority_scale": "payload"}, "priority"),
        ({"priority": 0, "priority_scale": "ticket"}, "priority"), ({"priority_scale": "mine"}, "priority_scale"),
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
def test_whatever_is_wrong_is_named_by_its_path_and_nothing_is_created(api, tenant, given, path):
    assert path in faults(api().post(ACTIVITIES, body(**given)))
    assert count(tenant) == 0


def test_all_errors_of_an_answer_are_reported_at_once(api, tenant):
    found = faults(api().post(ACTIVITIES, {"nmae": "x", "priority": "x", "params": 1, "timeout_seconds": 0}))

    assert set(found) == {"name", "nmae", "priority", "params", "timeout_seconds"}


def test_without_anybody_to_do_it_work_is_refused(api, tenant):
    assert set(faults(api().post(ACTIVITIES, {"name": "x"}))) == {"agent_role"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("requires_approval", True), ("files", ["src/**"]), ("not_before", "2030-01-01T00:00:00Z")],
)
def test_what_is_for_the_work_of_agents_is_refused_for_people(api, tenant, name, value):
    assert set(faults(api().post(ACTIVITIES, {"name": "x", "human_role": "editor", name: value}))) == {name}


@pytest.fixture
def strict_role() -> Any:
    """A role whose agent says what its parameters must be."""
    site = {"type": "object", "properties": {"url": {"type": "string"}}}
    members = {"topic": {"type": "string"}, "sites": {"type": "array", "items": site}}
    schema = {"type": "object", "required": ["topic"], "properties": members}
    Agent.objects.filter(role="seo").update(input_schema=schema)
    configuration.forget()
    yield "seo"
    Agent.objects.filter(role="seo").update(input_schema=None)
    configuration.forget()


def test_parameters_are_held_against_the_schema_of_the_agent(api, tenant, strict_role):
    client = api()

    refused = client.post(
        ACTIVITIES, {"name": "x", "agent_role": strict_role, "params": {"sites": [{}, {"url": 5}]}}
    )

    assert set(faults(refused)) == {"params", "params.sites[1].url"}
    assert "topic" in faults(refused)["params"]
    assert (
        client.post(
            ACTIVITIES, {"name": "x", "agent_role": strict_role, "params": {"topic": "bees"}}
        ).status_code
        == 201
    )


@pytest.mark.parametrize(
    "schema",
    [{"type": "nonsense"}, {"$ref": "http://127.0.0.1:9/schema"}, ["x"], {"properties": 5}, {"pattern": "("}],
)
def test_a_schema_that_is_none_stops_no_work_and_nothing_is_fetched(api, tenant, strict_role, schema):
    Agent.objects.filter(role=strict_role).update(input_schema=schema)
    configuration.forget()

    assert (
        api().post(ACTIVITIES, {"name": "x", "agent_role": strict_role, "params": {"a": 1}}).status_code
        == 201
    )


def test_the_output_of_an_activity_of_the_same_tenant_may_be_worked_on(api, tenant, engine: Engine):
    engine.serve(tenant)
    (done,) = engine.submit(tenant)
    engine.drain()
    reference = str(engine.get(tenant, done).output_ref)

    assert api().post(ACTIVITIES, body(input_ref=reference)).json()["input_ref"] == reference


def test_the_output_of_a_person_may_be_worked_on(api, tenant):
    client = api()
    task = client.post(ACTIVITIES, {"name": "Write", "human_role": "editor"}).json()
    done = client.post(f"{task['link']}complete/", {"output": {"content": "text"}}).json()

    assert client.post(ACTIVITIES, body(input_ref=done["output_ref"])).status_code == 201


def test_an_output_of_another_tenant_reads_like_one_that_is_not_there(
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


def test_input_comes_from_one_place(api, tenant):
    assert "input_ref" in faults(api().post(ACTIVITIES, body(input={"content": "x"}, input_ref=str(uuid4()))))


def test_work_put_off_is_not_offered_before_its_time(api, tenant):
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()

    api().post(ACTIVITIES, body(not_before=later))

    with tenant_scope(tenant.pk):
        assert Wake.objects.get().due_at is not None
