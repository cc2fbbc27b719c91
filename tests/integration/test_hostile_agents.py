"""An agent that does whatever it can: with the token of its run it reaches its run and nothing else, and it never decides.

The matrices come from the OpenAPI document, so an operation of tomorrow is in them.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from activities.models import Activity, ApprovalLink, ToolCall
from agents.contracts import Accepted
from tenants.context import tenant_scope
from tenants.models import Channel, Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.integration.test_api_openapi import CALLBACKS, operations
from tests.integration.test_tools import CALLS
from tests.one_of_each import World
from tests.snapshots import changed, snapshot
from tests.toolbox import OUTPUT, Caller, at_work, child, count_of, of

pytestmark = pytest.mark.usefixtures("one_at_a_time")


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


@pytest.fixture
def world(api: Any, engine: Engine, tenant: Tenant) -> World:
    return World(engine, tenant, api("admin", platform=True))


@pytest.fixture
def elsewhere(api: Any, engine: Engine, other_tenant: Tenant) -> World:
    return World(engine, other_tenant, api("admin", other_tenant))


@pytest.fixture(autouse=True)
def nobody_is_locked_out(settings: Any) -> None:
    """So that each refusal is of the token itself, and not because so many came before it."""
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT = 10_000
    settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS = 10_000


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


@pytest.mark.parametrize("token", ["", "x", "a:b:c", "null", "eyJhbGciOiJub25lIn0.e30.", "x" * 5_000])
def test_what_is_no_token_opens_nothing(world: World, token: str) -> None:
    good = world.agent.request.callback.token
    for text in (
        token,
        good[:-1] + ("E" if good.endswith("A") else "A"),
        good + ":x",
    ):
        client = Caller(world.agent.request, token=text or " ")

        assert client.post("complete", OUTPUT).status_code == 401
        assert client.use("report_blocker", **CALLS["report_blocker"]).status_code == 401


# What a tool may name

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
    """Of another tenant, of another kind, or of nobody: 403 or 400, the same for all, and nothing happens."""
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
        problem(asked, 403, "tool_refused")
        if value != world.ids["channels"]:
            blocked = agent.use("report_blocker", type="channel_auth_expired", message="x", channel_id=value)
            problem(blocked, 403, "tool_refused")

    assert (
        changed(before[0], snapshot(world.tenant)) == changed(before[1], snapshot(elsewhere.tenant)) == set()
    )


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


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -1}, {"input_tokens": 1.5}, {"output_tokens": "many"}, {"cost_usd": -0.01}, {"cost_usd": "NaN"},
        {"cost_usd": "Infinity"}, {"cost_usd": "1e400"}, {"input_tokens": 2**63}, {"cost_usd": [1]}, {"model": {"a": 1}}, [], "x",
    ],
)  # fmt: skip
def test_a_usage_that_cannot_be_is_refused_and_not_counted(engine: Engine, acme: Tenant, usage: Any) -> None:
    activity_id, agent = at_work(engine, acme)
    before = snapshot(acme)

    for verb, body in (("heartbeat", {"usage": usage}), ("complete", {**OUTPUT, "usage": usage})):
        assert agent.post(verb, body).status_code == 400, verb

    assert changed(before, snapshot(acme)) == set()
    assert engine.status(acme, activity_id) == "in_progress"


# Deciding


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
    problem(
        helper.use("create_approval", **CALLS["create_approval"], activity_ids=[str(uuid4())]),
        403,
        "tool_refused",
    )

    assert engine.status(acme, review) == "created"
    assert engine.status(acme, activity_id) == "awaiting_review"


# Quotas


def test_one_blocker_of_a_kind_is_open_and_not_more(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme)
    agent.used("report_blocker", **CALLS["report_blocker"])

    for number in range(3):
        agent.use("report_blocker", key=f"k{number}", **CALLS["report_blocker"])

    assert child(acme, activity_id).link_kind == "resolution"
    assert count_of(acme) == 2


def test_an_agent_asks_about_fifty_activities_at_once_and_not_more(engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    ids = list(map(str, engine.submit(acme, "ba", count=51)))

    refused = problem(
        agent.use("create_approval", **CALLS["create_approval"], activity_ids=ids), 429, "quota_exceeded"
    )

    assert refused["quota"] == "links"
    with tenant_scope(acme.pk):
        assert ApprovalLink.objects.count() == 0
    assert agent.use("create_approval", **CALLS["create_approval"], activity_ids=ids[:50]).status_code == 201


@pytest.mark.parametrize(
    ("tool", "member", "most"),
    [
        ("report_blocker", "message", 2_000), ("report_blocker", "type", 63), ("create_subtask", "name", 200),
        ("create_subtask", "description", 20_000), ("request_human_review", "question", 2_000),
        ("request_human_review", "content", 200_000),
        ("create_approval", "title", 200), ("create_approval", "type", 63), ("create_approval", "description", 20_000),
        ("reassign_task", "reason", 2_000),
    ],
)  # fmt: skip
def test_texts_have_a_longest_length(engine: Engine, acme: Tenant, tool: str, member: str, most: int) -> None:
    _, agent = at_work(engine, acme)

    refused = problem(agent.use(tool, **{**CALLS[tool], member: "x" * (most + 1)}), 400, "validation_failed")

    assert [fault["path"] for fault in refused["errors"]] == [member]
    assert agent.use(tool, **{**CALLS[tool], member: "x" * most}).status_code == 201


ASKING = [
    ("report_blocker", CALLS["report_blocker"]), ("request_human_review", CALLS["request_human_review"]),
    ("create_approval", CALLS["create_approval"]), ("reassign_task", CALLS["reassign_task"]),
    ("create_subtask", {"name": "Look", "human_role": "editor", "blocking": False}),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments"), ASKING, ids=[tool for tool, _ in ASKING])
def test_agents_of_a_role_fill_the_inbox_so_far_and_no_further(
    api: Any,
    engine: Engine,
    acme: Tenant,
    other_tenant: Tenant,
    settings: Any,
    tool: str,
    arguments: dict[str, Any],
) -> None:
    settings.ORCHESTRATOR_OPEN_ITEMS_PER_AGENT = 2
    engine.serve(other_tenant)
    _, first = at_work(engine, acme)
    asked = [first.used("create_subtask", name=name, human_role="editor", blocking=False) for name in "ab"]
    activity_id, agent = at_work(engine, acme)
    _, of_another_role = at_work(engine, acme, "dev")
    _, of_another_tenant = at_work(engine, other_tenant)
    before = count_of(acme)

    refused = problem(agent.use(tool, **arguments), 429, "quota_exceeded")

    assert (refused["quota"], count_of(acme), engine.status(acme, activity_id)) == (
        "inbox",
        before,
        "in_progress",
    )
    assert of_another_role.use(tool, **arguments).status_code == 201
    assert of_another_tenant.use(tool, **arguments).status_code == 201
    assert agent.use("create_subtask", name="x", agent_role="dev", blocking=False).status_code == 201
    assert api().post(of(asked[0], "complete"), {}).status_code == 200
    assert agent.use(tool, key="again", **arguments).status_code == 201


def test_a_question_that_is_open_already_is_not_asked_twice(engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    ids = list(map(str, engine.submit(acme, "ba", count=2)))
    approval = {**CALLS["create_approval"], "activity_ids": ids}
    task = {"name": "Look", "description": "There.", "human_role": "editor", "blocking": False}

    made = {
        tool: {agent.use(tool, key=f"{number}", **arguments).json()["id"] for number in range(4)}
        for tool, arguments in (("create_approval", approval), ("create_subtask", task))
    }
    others = {
        agent.use("create_subtask", **{**task, "name": "Look again"}).json()["id"],
        agent.use("create_approval", **{**approval, "activity_ids": ids[:1]}).json()["id"],
        agent.use("create_approval", **{**approval, "title": "And this?"}).json()["id"],
    }

    assert [len(found) for found in made.values()] == [1, 1]
    assert len(others - made["create_approval"] - made["create_subtask"]) == 3
    with tenant_scope(acme.pk):
        assert Activity.objects.filter(assignee_type="human").count() == 5
        assert ToolCall.objects.count() == 11


def test_every_refusal_is_written_down_once(
    engine: Engine, acme: Tenant, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.ORCHESTRATOR_OPEN_ITEMS_PER_AGENT = 0
    _, agent = at_work(engine, acme)

    agent.use("create_approval", **CALLS["create_approval"], activity_ids=[str(uuid4())])
    agent.use("report_blocker", type="x", message="y", channel_id=str(uuid4()))
    agent.use("request_human_review", question="May I?")

    told = [record for record in caplog.records if getattr(record, "action", "") == "tool_refused"]
    assert [(record.tool, record.code) for record in told] == [  # type: ignore[attr-defined]
        ("create_approval", "quota_exceeded"), ("report_blocker", "tool_refused"), ("request_human_review", "quota_exceeded"),
    ]  # fmt: skip
    assert {record.run for record in told} == {str(agent.run_id)}  # type: ignore[attr-defined]
