"""What holds for every tool: who may call it, that a call has one effect, when it is refused, and what bounds an agent."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError
from psycopg.errors import DeadlockDetected
from rest_framework.test import APIClient

from activities import backlog, cancellation, families, results, tools
from activities.exceptions import RunSuperseded
from activities.models import Activity, ToolCall
from activities.run_tokens import RunToken
from activities.tools import NAMES
from agents.contracts import Accepted
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.toolbox import OUTPUT, Caller, at_work, caller_of, child, count_of, not_woken, of, over

pytestmark = pytest.mark.usefixtures("one_at_a_time")

CALLS: dict[str, dict[str, Any]] = {
    "report_blocker": {"type": "api_outage", "message": "It is down."},
    "create_subtask": {"name": "Look it up", "agent_role": "ba", "blocking": True},
    "request_human_review": {"question": "Is this the tone?", "content": "Dear bees"},
    "create_approval": {"type": "content_direction", "title": "Which way?", "options": ["Honey", "Hives"]},
    "reassign_task": {"human_role": "editor", "reason": "Needs a person."},
}
#: Where each leaves the activity of the agent.
LEAVES = {
    "report_blocker": "blocked", "create_subtask": "awaiting_subtask", "request_human_review": "awaiting_review",
    "create_approval": "awaiting_review", "reassign_task": "reassigned",
}  # fmt: skip

every_tool = pytest.mark.parametrize("tool", CALLS)


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


def tool_calls(tenant: Tenant) -> list[ToolCall]:
    with tenant_scope(tenant.pk):
        return list(ToolCall.objects.for_tenant(tenant.pk).order_by("at"))


def test_these_are_all_tools() -> None:
    assert set(NAMES) == set(CALLS)


# One call, one effect


@every_tool
def test_a_call_leaves_the_work_where_the_tool_says_and_is_on_record(
    engine: Engine, acme: Tenant, tool: str
) -> None:
    activity_id, agent = at_work(engine, acme)

    answer = agent.use(tool, **CALLS[tool])

    made = child(acme, activity_id)
    assert (answer.status_code, answer.json()) == (
        201, {"id": str(made.pk), "status": LEAVES[tool], "stop": True, "duplicate": False},
    )  # fmt: skip
    assert engine.status(acme, activity_id) == LEAVES[tool]
    (run,) = engine.runs(acme, activity_id)
    assert (run.status, run.ended_by_tool) == ("completed", tool)
    (call,) = tool_calls(acme)
    assert (call.tool, call.run_id, call.answer["id"]) == (tool, agent.run_id, str(made.pk))


@every_tool
@pytest.mark.parametrize("key", ["", "k-1"])
def test_a_repeated_call_gets_the_first_answer_and_has_no_second_effect(
    engine: Engine, acme: Tenant, tool: str, key: str
) -> None:
    _, agent = at_work(engine, acme)
    first = agent.use(tool, key=key, **CALLS[tool])

    again = [agent.use(tool, key=key, **CALLS[tool]) for _ in range(2)]

    assert [answer.status_code for answer in again] == [200, 200]
    assert [answer.json() for answer in again] == [{**first.json(), "duplicate": True}] * 2
    assert (count_of(acme), len(tool_calls(acme))) == (2, 1)


def test_another_key_means_another_call(engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    aside = {"name": "Look it up", "agent_role": "ba", "blocking": False}

    first, second = (agent.use("create_subtask", key=key, **aside) for key in ("a", "b"))

    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] != second.json()["id"]
    assert agent.use("create_subtask", key="a", **aside).json() == {**first.json(), "duplicate": True}
    assert count_of(acme) == 3


def test_two_different_calls_without_a_key_are_two(engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)

    answers = [agent.use("create_subtask", name=name, agent_role="ba", blocking=False) for name in "ab"]

    assert [(answer.status_code, answer.json()["stop"]) for answer in answers] == [(201, False)] * 2


def test_a_key_that_was_used_for_another_call_is_refused(engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    agent.use("create_subtask", key="a", name="one", agent_role="ba", blocking=False)

    answer = agent.use("create_subtask", key="a", name="two", agent_role="ba", blocking=False)

    problem(answer, 422, "idempotency_key_reused")
    assert count_of(acme) == 2


@pytest.mark.parametrize("key", ["x" * 256, "with\ttab"])
def test_a_key_that_is_none_is_refused(engine: Engine, acme: Tenant, key: str) -> None:
    _, agent = at_work(engine, acme)

    problem(agent.use("report_blocker", key=key, **CALLS["report_blocker"]), 400, "invalid_idempotency_key")


def test_keys_that_differ_at_their_end_alone_are_two(engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    keys = ["x" * 254 + end for end in "ab"]

    answers = [
        agent.use("create_subtask", key=key, name="n", agent_role="ba", blocking=False) for key in keys
    ]

    assert len({answer.json()["id"] for answer in answers}) == 2


# When the run is over


@every_tool
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "lost"])
def test_after_the_run_a_tool_does_nothing_and_tells_the_agent_to_stop(
    engine: Engine, acme: Tenant, tool: str, end: str
) -> None:
    activity_id, agent = at_work(engine, acme)
    if end == "completed":
        agent.post("complete", OUTPUT)
    elif end == "failed":
        agent.post("fail", {"error": {"message": "x", "retryable": False}})
    elif end == "cancelled":
        cancellation.cancel(acme.pk, activity_id, actor="test")
    else:
        (run,) = engine.runs(acme, activity_id)
        results.stalled(RunToken(acme.pk, activity_id, run.pk, run.fence))
        engine.drain()
    before = (count_of(acme), engine.status(acme, activity_id))

    over(agent.use(tool, **CALLS[tool]))
    over(agent.use(tool, nonsense=True))  # That comes first: there is nothing to mend in the call.

    assert (count_of(acme), engine.status(acme, activity_id)) == before
    assert tool_calls(acme) == []


@every_tool
def test_after_one_tool_has_ended_the_run_another_does_nothing(
    engine: Engine, acme: Tenant, tool: str
) -> None:
    _, agent = at_work(engine, acme)
    agent.used("request_human_review", question="First?")

    over(agent.use(tool, key="another", **CALLS[tool]), "request_human_review")

    assert count_of(acme) == 2


def test_the_token_of_a_run_that_was_superseded_moves_nothing_of_the_next_one(
    engine: Engine, acme: Tenant
) -> None:
    activity_id, old = at_work(engine, acme)
    (run,) = engine.runs(acme, activity_id)
    results.stalled(RunToken(acme.pk, activity_id, run.pk, run.fence))
    engine.drain()

    for tool, arguments in CALLS.items():
        over(old.use(tool, **arguments))

    assert engine.status(acme, activity_id) == "in_progress"
    assert caller_of(engine, activity_id).use("report_blocker", **CALLS["report_blocker"]).status_code == 201


def test_a_run_that_is_superseded_between_the_look_and_the_lock_does_nothing_for_the_next_one(
    engine: Engine, acme: Tenant
) -> None:
    """A tool that lets the run go on writes nothing that would notice."""
    activity_id, _ = at_work(engine, acme)
    (run,) = engine.runs(acme, activity_id)
    stale = RunToken(acme.pk, activity_id, run.pk, run.fence)
    results.stalled(stale)
    engine.drain()

    with pytest.raises(RunSuperseded):
        tools.call(stale, "create_subtask", {"name": "n", "agent_role": "ba", "blocking": False})

    assert count_of(acme) == 1


# Whose call it is


@every_tool
def test_the_token_of_another_run_opens_nothing(engine: Engine, acme: Tenant, tool: str) -> None:
    _, mine = at_work(engine, acme)
    _, other = at_work(engine, acme)

    answer = Caller(mine.request, token=other.request.callback.token).use(tool, **CALLS[tool])

    problem(answer, 404, "not_found")
    assert count_of(acme) == 2


@every_tool
def test_tools_are_for_agents_alone(api: Any, engine: Engine, acme: Tenant, tool: str) -> None:
    _, agent = at_work(engine, acme)
    address = f"/{agent.address}tools/{tool}/"

    problem(api("admin").post(address, CALLS[tool]), 401, "invalid_token")
    problem(APIClient().post(address, CALLS[tool]), 401, "not_authenticated")

    assert count_of(acme) == 1


@pytest.mark.parametrize("verb", ["approve", "reject", "review", "resolve", "cancel", "reassign", "complete"])
def test_an_agent_can_ask_and_never_decide(engine: Engine, acme: Tenant, verb: str) -> None:
    _, agent = at_work(engine, acme)
    item = agent.used("request_human_review", question="Good?")

    answer = agent.client.post(of(item, verb), {"notes": "yes"})

    problem(answer, 401, "invalid_token")
    assert engine.status(acme, item) == "created"


def test_a_tool_that_is_none_is_not_there(engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)

    problem(agent.use("approve_everything", a=1), 404, "tool_not_available")


# What is named in a call


@pytest.mark.parametrize(
    ("tool", "change", "path"),
    [
        ("report_blocker", {"message": ""}, "message"), ("report_blocker", {"type": None}, "type"),
        ("report_blocker", {"channel_id": "seven"}, "channel_id"), ("report_blocker", {"kind": "x"}, "kind"),
        ("create_subtask", {"agent_role": "no-such-role"}, "agent_role"), ("create_subtask", {"agent_role": None}, "agent_role"),
        ("create_subtask", {"human_role": "editor"}, "agent_role"), ("create_subtask", {"assignee_type": "human"}, "assignee_type"),
        ("create_subtask", {"blocking": None}, "blocking"), ("create_subtask", {"blocking": "yes"}, "blocking"),
        ("create_subtask", {"params": [1]}, "params"), ("create_subtask", {"name": "x" * 201}, "name"),
        ("request_human_review", {"question": " "}, "question"), ("request_human_review", {"on_timeout": "approve"}, "on_timeout"),
        ("request_human_review", {"quorum": 3, "voters": 2}, "voters"),
        ("create_approval", {"options": ["a", "a"]}, "options"), ("create_approval", {"activity_ids": ["x"]}, "activity_ids[0]"),
        ("reassign_task", {"reason": ""}, "reason"), ("reassign_task", {"human_role": None}, "agent_role"),
        ("reassign_task", {"assignee_type": "robot"}, "assignee_type"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_call_is_named_by_its_path_and_nothing_happens(
    engine: Engine, acme: Tenant, tool: str, change: dict[str, Any], path: str
) -> None:
    activity_id, agent = at_work(engine, acme)

    refused = problem(agent.use(tool, **{**CALLS[tool], **change}), 400, "validation_failed")

    assert path in [fault["path"] for fault in refused["errors"]]
    assert (engine.status(acme, activity_id), count_of(acme)) == ("in_progress", 1)
    assert agent.use(tool, **CALLS[tool]).status_code == 201


def test_a_member_that_is_null_counts_as_left_out(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme)

    agent.used("reassign_task", assignee_type="agent", agent_role="dev", human_role=None, reason="Yours.")

    assert child(acme, activity_id).agent_role == "dev"


@pytest.mark.parametrize("whose", ["other", "nobody"])
def test_an_approval_over_what_is_not_the_tenants_is_refused_and_nothing_happens(
    engine: Engine, acme: Tenant, other_tenant: Tenant, whose: str
) -> None:
    engine.serve(other_tenant)
    (foreign,) = engine.submit(other_tenant, "ba") if whose == "other" else (uuid4(),)
    (own,) = engine.submit(acme, "ba")
    _, agent = at_work(engine, acme)
    ids = [str(own), str(foreign)]

    answer = agent.use("create_approval", **CALLS["create_approval"], activity_ids=ids)

    assert str(foreign) in problem(answer, 403, "tool_refused")["detail"]
    assert count_of(acme) == 2
    assert engine.status(acme, own) == "created"
    if whose == "other":
        assert engine.status(other_tenant, foreign) == "created"


# What bounds an agent


def test_a_run_calls_so_many_tools_and_not_more(engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_TOOL_CALLS_PER_RUN = 3
    activity_id, agent = at_work(engine, acme)
    aside = {"agent_role": "ba", "blocking": False}
    first = [agent.use("create_subtask", name=f"part {n}", **aside).json() for n in range(3)]

    refused = problem(agent.use("report_blocker", **CALLS["report_blocker"]), 429, "quota_exceeded")

    assert refused["quota"] == "tool_calls"
    assert engine.status(acme, activity_id) == "in_progress"
    assert agent.use("create_subtask", name="part 0", **aside).json() == {**first[0], "duplicate": True}


def test_a_call_that_was_refused_uses_up_nothing(engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_TOOL_CALLS_PER_RUN = 1
    _, agent = at_work(engine, acme)
    for _ in range(3):
        agent.use("report_blocker", type="x", message="y", channel_id=str(uuid4()))

    assert agent.use("report_blocker", **CALLS["report_blocker"]).status_code == 201


def test_each_run_may_call_anew(api: Any, engine: Engine, acme: Tenant, settings: Any) -> None:
    settings.ORCHESTRATOR_TOOL_CALLS_PER_RUN = 1
    activity_id, agent = at_work(engine, acme)
    agent.used("report_blocker", **CALLS["report_blocker"])
    api().post(of(activity_id, "resolve"), {"note": "Up."})
    engine.drain()

    assert caller_of(engine, activity_id).use("report_blocker", **CALLS["report_blocker"]).status_code == 201


@pytest.mark.parametrize("tool", ["create_subtask", "reassign_task"])
def test_a_full_backlog_refuses_more_work_for_its_role_and_still_answers_repetitions(
    engine: Engine, acme: Tenant, settings: Any, tool: str
) -> None:
    arguments = {**CALLS[tool], "human_role": None, "agent_role": "ba"}
    activity_id, agent = at_work(engine, acme)
    other_id, other = at_work(engine, acme)
    first = agent.use(tool, **arguments)
    backlog._counts.clear()
    settings.ORCHESTRATOR_MAX_BACKLOG = 1

    refused = other.use(tool, **arguments)

    problem(refused, 429, "backlog_full")
    assert refused["Retry-After"]
    assert engine.status(acme, other_id) == "in_progress"
    assert agent.use(tool, **arguments).json() == {**first.json(), "duplicate": True}
    assert engine.status(acme, activity_id) == LEAVES[tool]


def test_nothing_that_a_tool_did_stays_when_it_is_refused_half_way(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolution has been made by the time the run turns out to be over."""
    activity_id, agent = at_work(engine, acme)

    def gone(*arguments: Any, **more: Any) -> None:
        raise RunSuperseded(agent.run_id)

    monkeypatch.setattr("activities.models.ToolCall.objects.create", gone)
    over(agent.use("report_blocker", **CALLS["report_blocker"]))
    monkeypatch.undo()

    assert (engine.status(acme, activity_id), count_of(acme)) == ("in_progress", 1)
    assert not_woken(engine, activity_id)


@pytest.mark.parametrize("report", ["complete", "tools/report_blocker"])
def test_a_report_that_met_another_in_the_database_is_tried_again(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch, report: str
) -> None:
    _, agent = at_work(engine, acme)
    lock, met = families.lock, iter([True])

    def meets_another(*arguments: Any) -> Any:
        if next(met, False):
            raise OperationalError("deadlock detected") from DeadlockDetected()
        return lock(*arguments)

    monkeypatch.setattr(families, "lock", meets_another)
    answer = agent.post(report, OUTPUT if report == "complete" else CALLS["report_blocker"])

    assert answer.status_code in (200, 201), answer.content


def test_tool_calls_and_what_they_made_are_the_tenants_own(
    api: Any, engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    activity_id, agent = at_work(engine, acme)
    made = agent.used("report_blocker", **CALLS["report_blocker"])

    for part in ("", "timeline/", "why/"):
        problem(api(tenant=other_tenant).get(f"/api/v1/activities/{made}/{part}"), 404, "not_found")
    for verb, body in (
        ("resolve", {"note": "x"}),
        ("cancel", {}),
        ("reassign", {"human_role": "x", "reason": "y"}),
    ):
        for named in (made, activity_id):
            problem(api(tenant=other_tenant).post(of(named, verb), body), 404, "not_found")
    with tenant_scope(other_tenant.pk):
        assert (ToolCall.objects.count(), Activity.objects.count()) == (0, 0)
    assert (engine.status(acme, activity_id), engine.status(acme, UUID(str(made)))) == ("blocked", "created")
