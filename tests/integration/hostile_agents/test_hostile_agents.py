"""A run token opens its run alone, and a tool is about nothing else, whatever it names."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from activities.execution import agent_tools
from tenants.context import tenant_scope
from tenants.models import Channel, Tenant
from tests.answers import problem
from tests.api_objects import World
from tests.engine import Engine
from tests.integration.test_api_openapi import CALLBACKS, operations
from tests.integration.tools.calling import CALLS
from tests.snapshots import changed, snapshot
from tests.toolbox import OUTPUT, Caller, at_work, of

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_at_a_time")]


@pytest.fixture
def world(api: Any, engine: Engine, tenant: Tenant) -> World:
    return World(engine, tenant, api("admin", platform=True))


@pytest.fixture
def elsewhere(api: Any, engine: Engine, other_tenant: Tenant) -> World:
    return World(engine, other_tenant, api("admin", other_tenant))


#: Bodies with which somebody decides, configures or starts something.
DEEDS: list[dict[str, Any]] = [
    {},
    {"notes": "fine", "decision": "approved", "approved": True, "note": "done", "reason": "x"},
]


def test_the_token_of_a_run_opens_no_operation_but_those_of_its_run(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Approving, rejecting, resolving, configuring and scheduling among them."""
    before, tried = snapshot(world.tenant), 0

    for method, address, _ in operations():
        if address.startswith(CALLBACKS):
            continue
        for body in DEEDS if method in ("post", "put", "patch") else [None]:
            answer = getattr(world.agent.client, method)(world.at(address), body)
            assert answer.status_code == 401, (method, address, answer.content)
            tried += 1

    assert tried > 130
    assert changed(before, snapshot(world.tenant)) == set()


def test_the_token_of_a_run_opens_no_page_and_no_stream(world: World) -> None:
    for address in ("/", "/inbox/", "/admin/", "/admin/activities/activity/", "/api/v1/events/"):
        answer = world.agent.client.get(address)
        assert answer.status_code in (301, 302, 401, 403, 404), (address, answer.status_code)
        if answer.status_code in (301, 302):
            assert "login" in answer["Location"]


def test_a_run_token_at_another_run_finds_nothing_and_changes_nothing(
    engine: Engine, world: World, elsewhere: World
) -> None:
    """A run of the same tenant, one of another tenant, and one that nobody has: the same answer."""
    _, sibling = at_work(engine, world.tenant)
    before = snapshot(world.tenant), snapshot(elsewhere.tenant)
    answers = set()

    for method, address, _ in operations():
        if not address.startswith(CALLBACKS):
            continue
        for run in (sibling.run_id, elsewhere.agent.run_id, uuid4()):
            place = world.at(address).replace(str(world.agent.run_id), str(run))
            answer = getattr(world.agent.client, method)(
                place, {**OUTPUT, **CALLS["report_blocker"]} if method == "post" else None
            )
            body = problem(answer, 404, "not_found")
            answers.add((body["detail"], tuple(sorted(body))))

    assert len(answers) == 1
    assert (
        changed(before[0], snapshot(world.tenant)) == changed(before[1], snapshot(elsewhere.tenant)) == set()
    )


def test_what_is_no_token_opens_nothing(world: World) -> None:
    good = world.agent.request.callback.token
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
        client = Caller(world.agent.request, token=text or " ")

        assert client.post("complete", OUTPUT).status_code == 401
        assert client.use("report_blocker", **CALLS["report_blocker"]).status_code == 401


#: Members that would widen what a call is about, if anybody listened to them.
WIDER = [
    "activity", "activity_id", "tenant", "tenant_id", "tenantId", "run", "run_id", "parent", "parent_id", "deliverable", "deliverable_id",
    "pipeline_run", "pipeline_run_id", "actor", "decided_by", "status", "approved", "fence", "token", "user", "user_id", "requested_by",
    "priority", "output_ref", "link_kind", "metadata", "is_approval_gate", "decision_rules",
]  # fmt: skip


@pytest.mark.parametrize("tool", CALLS)
def test_a_tool_takes_no_member_that_says_whose_or_about_what(
    engine: Engine, acme: Tenant, other_tenant: Tenant, tool: str
) -> None:
    _, victim = at_work(engine, acme)
    _, agent = at_work(engine, acme)
    before = snapshot(acme)

    for member in WIDER:
        for value in (str(victim.activity_id), str(other_tenant.pk)):
            body = problem(agent.use(tool, **CALLS[tool], **{member: value}), 400, "validation_failed")
            assert [fault["path"] for fault in body["errors"]] == [member]

    assert changed(before, snapshot(acme)) == set()


def test_ids_of_others_in_a_tool_are_refused_whatever_they_are(
    engine: Engine, world: World, elsewhere: World
) -> None:
    """Of another tenant, of another kind, or of nobody: the same answer for all, and nothing happens but that the call is on record."""
    _, agent = at_work(engine, world.tenant)
    foreign = [value for name, value in elsewhere.ids.items() if _is_id(value)]
    kinds = [
        value
        for name, value in world.ids.items()
        if _is_id(value) and name not in ("activities", "approvals")
    ]
    before = snapshot(world.tenant), snapshot(elsewhere.tenant)

    for value in (*foreign, *kinds, str(uuid4()), str(elsewhere.agent.activity_id)):
        asked = agent.use("create_approval", **CALLS["create_approval"], activity_ids=[value])
        answer = asked.json()
        assert (answer["id"], answer["held"], answer["not_held"]) == (
            None, [], [{"id": value, "reason": agent_tools.NOT_OWN}],
        )  # fmt: skip
        if value != world.ids["channels"]:
            blocked = agent.use("report_blocker", type="channel_auth_expired", message="x", channel_id=value)
            problem(blocked, 403, "tool_refused")

    assert changed(before[0], snapshot(world.tenant)) == {"activities_toolcall"}
    assert changed(before[1], snapshot(elsewhere.tenant)) == set()


def _is_id(value: str) -> bool:
    return len(value) == 36 and value.count("-") == 4


def test_a_channel_of_another_tenant_does_not_expire_by_a_blocker(
    engine: Engine, acme: Tenant, elsewhere: World
) -> None:
    _, agent = at_work(engine, acme)

    agent.use(
        "report_blocker", type="channel_auth_expired", message="x", channel_id=elsewhere.ids["channels"]
    )

    with tenant_scope(elsewhere.tenant.pk):
        assert Channel.objects.get(pk=elsewhere.ids["channels"]).status == "active"


@pytest.mark.parametrize("verb", ["complete", "heartbeat"])
def test_a_report_is_about_its_run_whatever_else_it_says(
    engine: Engine, world: World, elsewhere: World, verb: str
) -> None:
    """Reports may say more than we know, and none of it is listened to."""
    _, victim = at_work(engine, world.tenant)
    before = snapshot(elsewhere.tenant)
    more = {name: str(victim.activity_id) for name in WIDER} | {
        "tenant_id": str(elsewhere.tenant.pk),
        "status": "approved",
    }

    answer = world.agent.post(
        verb, {**more, **(OUTPUT if verb == "complete" else {"usage": {"input_tokens": 1}})}
    )

    assert answer.status_code == 200, answer.content
    assert engine.status(world.tenant, victim.activity_id) == "in_progress"
    assert engine.status(world.tenant, world.agent.activity_id) == (
        "done" if verb == "complete" else "in_progress"
    )
    assert changed(before, snapshot(elsewhere.tenant)) == set()


NO_USAGES: list[Any] = [
    {"input_tokens": -1}, {"input_tokens": 1.5}, {"output_tokens": "many"}, {"cost_usd": -0.01}, {"cost_usd": "NaN"},
    {"cost_usd": "Infinity"}, {"cost_usd": "1e400"}, {"input_tokens": 2**63}, {"cost_usd": [1]}, {"model": {"a": 1}}, [], "x",
]  # fmt: skip


def test_a_usage_that_cannot_be_is_refused_and_not_counted(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme)
    before = snapshot(acme)

    for usage in NO_USAGES:
        for verb, body in (("heartbeat", {"usage": usage}), ("complete", {**OUTPUT, "usage": usage})):
            assert agent.post(verb, body).status_code == 400, (verb, usage)

    assert changed(before, snapshot(acme)) == set()
    assert engine.status(acme, activity_id) == "in_progress"


def test_what_waits_for_a_decision_is_what_was_shown(api: Any, engine: Engine, acme: Tenant) -> None:
    """Neither its agent nor a late answer changes an output that people look at; who decides about another one is told."""
    activity_id, agent = at_work(engine, acme, requires_approval=True)
    agent.post("complete", OUTPUT)
    reviewer, place = api("reviewer"), f"/api/v1/activities/{activity_id}/"
    shown, output = reviewer.get(place), reviewer.get(f"{place}output/").json()

    changed_ = agent.post("complete", {"output": {"content": "# Wasps"}})
    agent.post("heartbeat", {"progress": {"text": "# Wasps"}})
    agent.post("fail", {"error": {"message": "never mind", "retryable": True}})

    problem(changed_, 409, "already_completed")
    assert reviewer.get(f"{place}output/").json() == output
    stale = reviewer.post(of(activity_id, "approve"), {}, headers={"If-Match": '"1"'})
    problem(stale, 412, "precondition_failed")
    kept = reviewer.post(of(activity_id, "approve"), {}, headers={"If-Match": shown["ETag"]})
    assert kept.status_code == 200, kept.content


def test_what_an_agent_asked_for_is_not_answered_by_what_the_agent_made(engine: Engine, acme: Tenant) -> None:
    """A subtask of an agent cannot close the review that its parent waits for: only people's doors lead there."""
    activity_id, agent = at_work(engine, acme)
    agent.used("create_subtask", name="helper", agent_role="dev", blocking=False)
    review = agent.used("request_human_review", question="May I?")
    engine.drain()
    helper = Caller(engine.agent.calls[-1])

    for verb in ("approve", "reject", "review", "complete", "cancel", "reassign", "resolve", "start"):
        for client in (agent.client, helper.client):
            assert (
                client.post(of(review, verb), {"approved": True, "notes": "x", "note": "x"}).status_code
                == 401
            )
    helped = helper.use("create_approval", **CALLS["create_approval"], activity_ids=[str(activity_id)])
    assert helped.json()["held"] == []

    assert engine.status(acme, review) == "created"
    assert engine.status(acme, activity_id) == "awaiting_review"
