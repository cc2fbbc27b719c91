"""A run token authorises its own run only, and a tool affects nothing else, whatever its arguments name."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import uuid4

import pytest

from activities.execution import agent_tools
from tenants.models import Tenant
from tests.accepted_work import RESULT, AgentClient, accept_work, action_url
from tests.answers import problem
from tests.api_objects import ApiObjects, create_api_objects
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.test_api_openapi import CALLBACKS, operations
from tests.integration.tools.calling import CALLS
from tests.snapshots import changed, snapshot

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_at_a_time", "agent_accepts")]


@pytest.fixture
def objects(api: Any, engine: Engine, tenant: Tenant) -> ApiObjects:
    return create_api_objects(engine, tenant, api("admin", platform=True))


@pytest.fixture
def other_objects(api: Any, engine: Engine, other_tenant: Tenant) -> ApiObjects:
    return create_api_objects(engine, other_tenant, api("admin", other_tenant))


#: Bodies of requests that decide, configure or start something.
BODIES: list[dict[str, Any]] = [
    {},
    {"notes": "fine", "decision": "approved", "approved": True, "note": "done", "reason": "x"},
]


def a_run_token_opens_no_other_operation_of_the_api(
    engine: Engine, objects: ApiObjects, other_objects: ApiObjects
) -> None:
    """This includes approving, rejecting, resolving, configuring and scheduling."""
    before, requests = snapshot(objects.tenant), 0

    for method, address, _ in operations():
        if address.startswith(CALLBACKS):
            continue
        for body in BODIES if method in ("post", "put", "patch") else [None]:
            answer = getattr(objects.agent.client, method)(objects.address(address), body)
            assert answer.status_code == 401, (method, address, answer.content)
            requests += 1

    assert requests > 130
    assert changed(before, snapshot(objects.tenant)) == set()


def a_run_token_opens_no_page_and_no_stream(
    engine: Engine, objects: ApiObjects, other_objects: ApiObjects
) -> None:
    for address in ("/", "/inbox/", "/admin/", "/admin/activities/activity/", "/api/v1/events/"):
        answer = objects.agent.client.get(address)
        assert answer.status_code in (301, 302, 401, 403, 404), (address, answer.status_code)
        if answer.status_code in (301, 302):
            assert "login" in answer["Location"]


def a_run_token_does_not_find_or_change_another_run(
    engine: Engine, objects: ApiObjects, other_objects: ApiObjects
) -> None:
    """The response is the same for runs of the same tenant, of another tenant, and unknown runs."""
    _, sibling = accept_work(engine, objects.tenant)
    before = snapshot(objects.tenant), snapshot(other_objects.tenant)
    answers = set()

    for method, address, _ in operations():
        if not address.startswith(CALLBACKS):
            continue
        for run in (sibling.run_id, other_objects.agent.run_id, uuid4()):
            place = objects.address(address).replace(str(objects.agent.run_id), str(run))
            answer = getattr(objects.agent.client, method)(
                place, {**RESULT, **CALLS["report_blocker"]} if method == "post" else None
            )
            body = problem(answer, 404, "not_found")
            answers.add((body["detail"], tuple(sorted(body))))

    assert len(answers) == 1
    assert (
        changed(before[0], snapshot(objects.tenant))
        == changed(before[1], snapshot(other_objects.tenant))
        == set()
    )


def malformed_tokens_are_refused(engine: Engine, objects: ApiObjects, other_objects: ApiObjects) -> None:
    good = objects.agent.request.callback.token
    for text in (
        "",
        "x",
        "a:b:c",
        "null",
        "eyJhbGciOiJub25lIn0.e30.",
        "x" * 5_000,
        good[:-1] + ("E" if good.endswith("A") else "A"),
        good + ":x",
    ):
        client = AgentClient(objects.agent.request, token=text or " ")

        assert client.post("complete", RESULT).status_code == 401
        assert client.use("report_blocker", **CALLS["report_blocker"]).status_code == 401


#: Fields that would widen the effect of a call if they were accepted.
WIDENING_FIELDS = [
    "activity", "activity_id", "tenant", "tenant_id", "tenantId", "run", "run_id", "parent", "parent_id", "deliverable", "deliverable_id",
    "pipeline_run", "pipeline_run_id", "actor", "decided_by", "status", "approved", "fence", "token", "user", "user_id", "requested_by",
    "priority", "output_ref", "link_kind", "metadata", "is_approval_gate", "decision_rules",
]  # fmt: skip


def test_tools_refuse_fields_that_name_other_work_or_tenants(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    _, victim = accept_work(engine, acme)
    _, agent = accept_work(engine, acme)
    before = snapshot(acme)

    for tool, member in product(CALLS, WIDENING_FIELDS):
        value = other_tenant.pk if "tenant" in member else victim.activity_id
        body = problem(agent.use(tool, **CALLS[tool], **{member: str(value)}), 400, "validation_failed")
        assert [fault["path"] for fault in body["errors"]] == [member], tool

    assert changed(before, snapshot(acme)) == set()


def foreign_ids_in_arguments_of_tools_are_refused_alike(
    engine: Engine, objects: ApiObjects, other_objects: ApiObjects
) -> None:
    """The response is the same for ids of another tenant, of another kind and unknown ones. Only the call is recorded, and for
    example no channel of another tenant expires."""
    _, agent = accept_work(engine, objects.tenant)
    channel = objects.parameters["channels/"]["id"]
    ids = {*ids_of(other_objects), *ids_of(objects, "activities/{id}", "activities/", "approvals/")}
    ids |= {str(uuid4()), str(other_objects.agent.activity_id)}
    before = snapshot(objects.tenant), snapshot(other_objects.tenant)

    for value in ids:
        response = agent.use("create_approval", **CALLS["create_approval"], activity_ids=[value])
        answer = response.json()
        assert (answer["id"], answer["held"], answer["not_held"]) == (
            None, [], [{"id": value, "reason": agent_tools.NOT_OWN}],
        )  # fmt: skip
        if value != channel:
            blocked = agent.use("report_blocker", type="channel_auth_expired", message="x", channel_id=value)
            problem(blocked, 403, "tool_refused")

    assert changed(before[0], snapshot(objects.tenant)) == {"activities_toolcall"}
    assert changed(before[1], snapshot(other_objects.tenant)) == set()


def ids_of(objects: ApiObjects, *without: str) -> set[str]:
    """Return the ids of all objects but those at the addresses `without`."""
    return {
        value
        for place, parameters in objects.parameters.items()
        if place not in without
        for value in parameters.values()
        if len(value) == 36 and value.count("-") == 4
    }


def a_report_affects_its_run_only_whatever_fields_it_has(
    engine: Engine, objects: ApiObjects, other_objects: ApiObjects
) -> None:
    """Unknown fields of reports are ignored."""
    _, victim = accept_work(engine, objects.tenant, "dev")
    before = snapshot(other_objects.tenant)
    more = {name: str(victim.activity_id) for name in WIDENING_FIELDS} | {
        "tenant_id": str(other_objects.tenant.pk),
        "status": "approved",
    }

    heartbeat = objects.agent.post("heartbeat", {**more, "usage": {"input_tokens": 1}})
    status_meanwhile = engine.status(objects.tenant, objects.agent.activity_id)
    complete = objects.agent.post("complete", {**more, **RESULT})

    assert (heartbeat.status_code, status_meanwhile) == (200, "in_progress"), heartbeat.content
    assert complete.status_code == 200, complete.content
    assert engine.status(objects.tenant, victim.activity_id) == "in_progress"
    assert engine.status(objects.tenant, objects.agent.activity_id) == "done"
    assert changed(before, snapshot(other_objects.tenant)) == set()


#: Of the token of a run. The last one ends the run of `objects.agent`.
RULES = [
    a_run_token_opens_no_other_operation_of_the_api,
    a_run_token_opens_no_page_and_no_stream,
    malformed_tokens_are_refused,
    a_run_token_does_not_find_or_change_another_run,
    foreign_ids_in_arguments_of_tools_are_refused_alike,
    a_report_affects_its_run_only_whatever_fields_it_has,
]


@in_one_test("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_run_token_affects_its_own_run_only(
    rule: Any, engine: Engine, objects: ApiObjects, other_objects: ApiObjects
) -> None:
    rule(engine, objects, other_objects)


INVALID_USAGES: list[Any] = [
    {"input_tokens": -1}, {"input_tokens": 1.5}, {"output_tokens": "many"}, {"cost_usd": -0.01}, {"cost_usd": "NaN"},
    {"cost_usd": "Infinity"}, {"cost_usd": "1e400"}, {"input_tokens": 2**63}, {"cost_usd": [1]}, {"model": {"a": 1}}, [], "x",
]  # fmt: skip


def test_impossible_usage_is_refused_and_not_counted(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = accept_work(engine, acme)
    before = snapshot(acme)

    for usage in INVALID_USAGES:
        for verb, body in (("heartbeat", {"usage": usage}), ("complete", {**RESULT, "usage": usage})):
            assert agent.post(verb, body).status_code == 400, (verb, usage)

    assert changed(before, snapshot(acme)) == set()
    assert engine.status(acme, activity_id) == "in_progress"


def test_an_output_that_awaits_approval_cannot_change(api: Any, engine: Engine, acme: Tenant) -> None:
    """Neither the agent nor a late report changes an output that awaits approval. A decision with another version is refused."""
    activity_id, agent = accept_work(engine, acme, requires_approval=True)
    agent.post("complete", RESULT)
    reviewer, place = api("reviewer"), f"/api/v1/activities/{activity_id}/"
    activity, output = reviewer.get(place), reviewer.get(f"{place}output/").json()

    second_result = agent.post("complete", {"output": {"content": "# Wasps"}})
    agent.post("heartbeat", {"progress": {"text": "# Wasps"}})
    agent.post("fail", {"error": {"message": "never mind", "retryable": True}})

    problem(second_result, 409, "already_completed")
    assert reviewer.get(f"{place}output/").json() == output
    stale = reviewer.post(action_url(activity_id, "approve"), {}, headers={"If-Match": '"1"'})
    problem(stale, 412, "precondition_failed")
    approved = reviewer.post(action_url(activity_id, "approve"), {}, headers={"If-Match": activity["ETag"]})
    assert approved.status_code == 200, approved.content


def test_a_subtask_cannot_answer_the_review_of_its_parent(engine: Engine, acme: Tenant) -> None:
    """A subtask of an agent cannot answer the review that its parent waits for."""
    activity_id, agent = accept_work(engine, acme)
    agent.create_with("create_subtask", name="helper", agent_role="dev", blocking=False)
    review = agent.create_with("request_human_review", question="May I?")
    engine.drain()
    helper = AgentClient(engine.agent.calls[-1])

    for verb in ("approve", "reject", "review", "complete", "cancel", "reassign", "resolve", "start"):
        for client in (agent.client, helper.client):
            assert (
                client.post(
                    action_url(review, verb), {"approved": True, "notes": "x", "note": "x"}
                ).status_code
                == 401
            )
    response = helper.use("create_approval", **CALLS["create_approval"], activity_ids=[str(activity_id)])
    assert response.json()["held"] == []

    assert engine.status(acme, review) == "created"
    assert engine.status(acme, activity_id) == "awaiting_review"
