"""An agent reports what holds it up, a person removes it, and the agent goes on: once, with what the person said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from activities import cancellation, tasks
from activities.admission import rebuilding
from activities.states import LinkKind
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output, Usage
from agents.exceptions import PermanentAgentError, RetryableAgentError
from pipelines import versions
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Channel, Tenant
from tests.answers import problem
from tests.engine import Engine, elsewhere
from tests.toolbox import (
    OUTPUT,
    Caller,
    at_work,
    caller_of,
    child,
    children,
    count_of,
    not_woken,
    of,
    over,
    wakes_of,
    woken,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")

DOWN = {"type": "api_outage", "message": "The rank tracker is down.\nSince noon."}


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


def blocked(engine: Engine, acme: Tenant, **fields: Any) -> tuple[UUID, Caller, UUID]:
    """A blocked activity, the agent that reported the blocker, and the resolution that people are asked for."""
    activity_id, agent = at_work(engine, acme, **fields)
    return activity_id, agent, agent.used("report_blocker", **DOWN)


def a_channel(tenant: Tenant) -> Channel:
    with tenant_scope(tenant.pk):
        channel: Channel = Channel.objects.create(tenant=tenant, kind="instagram", name="Bees")
        return channel


# Asking


def test_a_blocker_puts_the_work_aside_and_asks_a_person(engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme, priority=10)

    answer = agent.use("report_blocker", **DOWN)

    resolution = child(acme, activity_id, LinkKind.RESOLUTION)
    assert (answer.status_code, answer.json()) == (
        201, {"id": str(resolution.pk), "status": "blocked", "stop": True, "duplicate": False},
    )  # fmt: skip
    waiting, (run,) = engine.get(acme, activity_id), engine.runs(acme, activity_id)
    assert (waiting.status, waiting.blocker_type, waiting.blocker_message) == ("blocked", *DOWN.values())
    assert waiting.blocked_at
    assert (run.status, run.ended_by_tool, waiting.output_ref) == ("completed", "report_blocker", None)
    assert (resolution.assignee_type, resolution.human_role, resolution.status) == (
        "human",
        "operator",
        "created",
    )
    assert (resolution.name, resolution.description) == ("The rank tracker is down.", DOWN["message"])
    assert (resolution.is_approval_gate, resolution.priority) == (False, 5)
    assert resolution.metadata == {
        "blocker_type": "api_outage", "blocked_activity_id": str(activity_id), "channel_id": None,
    }  # fmt: skip


def test_what_is_blocked_holds_no_slot(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    _, agent = at_work(engine, acme)
    (waiting,) = engine.submit(acme)
    assert engine.messages() == 0

    agent.used("report_blocker", **DOWN)
    engine.drain()

    assert engine.status(acme, waiting) == "in_progress"


@pytest.mark.parametrize(
    ("named", "asked"), [("devops", "devops"), ("", "operator"), ("x" * 64, "operator"), (7, "operator"), ({}, "operator")]
)  # fmt: skip
def test_the_activity_may_name_who_removes_its_blockers(
    engine: Engine, acme: Tenant, named: Any, asked: str
) -> None:
    activity_id, _, _ = blocked(engine, acme, metadata={"resolver_role": named})

    assert child(acme, activity_id).human_role == asked


def test_a_channel_whose_authorisation_is_gone_expires(engine: Engine, acme: Tenant) -> None:
    channel = a_channel(acme)
    activity_id, agent = at_work(engine, acme)

    agent.used(
        "report_blocker", type="channel_auth_expired", message="Log in again.", channel_id=str(channel.pk)
    )

    with tenant_scope(acme.pk):
        assert Channel.objects.get(pk=channel.pk).status == "expired"
    assert child(acme, activity_id).metadata["channel_id"] == str(channel.pk)


def test_another_blocker_does_not_expire_the_channel_that_it_names(engine: Engine, acme: Tenant) -> None:
    channel = a_channel(acme)
    _, agent = at_work(engine, acme)

    agent.used(
        "report_blocker", type="missing_integration", message="No insights.", channel_id=str(channel.pk)
    )

    with tenant_scope(acme.pk):
        assert Channel.objects.get(pk=channel.pk).status == "active"


@pytest.mark.parametrize("whose", ["other", "nobody"])
def test_a_channel_that_is_not_the_tenants_is_refused_and_nothing_happens(
    engine: Engine, acme: Tenant, other_tenant: Tenant, whose: str
) -> None:
    channel_id = a_channel(other_tenant).pk if whose == "other" else uuid4()
    activity_id, agent = at_work(engine, acme)

    answer = agent.use("report_blocker", type="channel_auth_expired", message="x", channel_id=str(channel_id))

    problem(answer, 403, "tool_refused")
    assert (engine.status(acme, activity_id), count_of(acme)) == ("in_progress", 1)
    if whose == "other":
        with tenant_scope(other_tenant.pk):
            assert Channel.objects.get(pk=channel_id).status == "active"


# Answering


@pytest.mark.parametrize("named", ["resolution", "blocked"])
def test_the_agent_goes_on_with_what_the_person_said(
    api: Any, engine: Engine, acme: Tenant, named: str
) -> None:
    activity_id, _, resolution = blocked(engine, acme)

    answer = api("reviewer", name="Ann").post(
        of(resolution if named == "resolution" else activity_id, "resolve"), {"note": "It is up again."}
    )

    assert answer.status_code == 200, answer.content
    told = woken(engine, activity_id)
    assert (told.wake_reason, told.attempt) == ("unblocked", 1)
    (wake,) = told.wakes
    assert wake == {
        "reason": "unblocked", "blocker_type": "api_outage", "blocker_message": DOWN["message"],
        "blocker_resolution": "It is up again.", "blocker_outcome": "done", "resolved_by": "token:Ann",
    }  # fmt: skip
    job = caller_of(engine, activity_id).job().json()
    assert (job["wake_reason"], job["blocker_resolution"]) == ("unblocked", "It is up again.")
    again = engine.get(acme, activity_id)
    assert (again.blocker_type, again.blocker_message, again.blocked_at) == (None, None, None)
    assert caller_of(engine, activity_id).post("complete", OUTPUT).json()["accepted"] is True
    assert engine.status(acme, activity_id) == "done"


def test_completing_the_resolution_resolves_it_too(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, _, resolution = blocked(engine, acme)

    api("reviewer").post(of(resolution, "complete"), {"note": "It is up again."})

    assert woken(engine, activity_id).wakes[0]["blocker_resolution"] == "It is up again."


def test_a_resolution_that_is_cancelled_wakes_with_that_outcome(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, _, resolution = blocked(engine, acme)

    api("operator").post(of(resolution, "cancel"), {"reason": "Do without it."})

    (wake,) = woken(engine, activity_id).wakes
    assert (wake["blocker_outcome"], wake["blocker_resolution"]) == ("cancelled", "Do without it.")


def test_a_second_answer_is_told_who_was_first_and_wakes_nobody(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, _, resolution = blocked(engine, acme)
    api("reviewer", name="Ann").post(of(resolution, "resolve"), {"note": "Up."})

    late = problem(
        api("reviewer", name="Bob").post(of(activity_id, "resolve"), {"note": "x"}), 409, "already_decided"
    )

    assert (late["decided_by"], late["decision"]) == ("token:Ann", "done")
    assert "token:Ann resolved this at" in late["detail"]
    assert [wake.reason for wake in wakes_of(acme, activity_id)] == ["new_task", "unblocked"]


def test_what_is_not_blocked_cannot_be_resolved(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, _ = at_work(engine, acme)

    refused = problem(
        api("reviewer").post(of(activity_id, "resolve"), {"note": "x"}), 409, "transition_refused"
    )

    assert "nothing blocks it" in refused["detail"]


def test_when_the_blocked_activity_is_cancelled_nobody_is_asked_any_more(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent, resolution = blocked(engine, acme)

    api("operator").post(of(activity_id, "cancel"), {"reason": "Not needed."})

    closed = engine.get(acme, resolution)
    assert (closed.status, closed.cancel_reason) == ("cancelled", "obsolete")
    for named in (resolution, activity_id):
        late = problem(api("reviewer").post(of(named, "resolve"), {"note": "x"}), 409, "transition_refused")
        assert "cancelled: obsolete" in late["detail"]
    assert not_woken(engine, activity_id)
    assert agent.post("heartbeat").json()["stop"] is True


def test_another_blocker_is_another_question(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, _, first = blocked(engine, acme)
    api("reviewer").post(of(first, "resolve"), {"note": "one"})
    woken(engine, activity_id)
    second = caller_of(engine, activity_id).used("report_blocker", type="api_outage", message="Down again.")

    problem(api("reviewer").post(of(first, "resolve"), {"note": "x"}), 409, "already_decided")
    assert engine.status(acme, activity_id) == "blocked"
    api("reviewer").post(of(activity_id, "resolve"), {"note": "two"})

    assert engine.status(acme, second) == "done"
    assert woken(engine, activity_id).wakes[0]["blocker_resolution"] == "two"


def test_a_blocker_hands_the_attempts_back(api: Any, engine: Engine, acme: Tenant) -> None:
    """Each part of the work has all attempts: an agent that asks often must not run out of them."""
    activity_id, _, _ = blocked(engine, acme, max_attempts=2)
    for _ in range(3):
        api("reviewer").post(of(activity_id, "resolve"), {"note": "Up."})
        woken(engine, activity_id)
        caller_of(engine, activity_id).used("report_blocker", **DOWN)
    api("reviewer").post(of(activity_id, "resolve"), {"note": "Up."})
    woken(engine, activity_id)

    caller_of(engine, activity_id).post("fail", {"error": {"message": "busy", "retryable": True}})

    assert engine.status(acme, activity_id) == "created"


# A resolution that goes to somebody else


def test_a_resolution_that_is_handed_to_another_person_still_wakes_the_agent(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, _, resolution = blocked(engine, acme)
    client = api("operator", name="Ann")

    heir = client.post(of(resolution, "reassign"), {"human_role": "devops", "reason": "Yours."}).json()

    assert (heir["human_role"], heir["assignee_type"], heir["is_approval_gate"]) == ("devops", "human", False)
    assert engine.status(acme, activity_id) == "blocked"
    assert client.post(of(activity_id, "resolve"), {"note": "Restarted."}).status_code == 200
    assert engine.status(acme, UUID(heir["id"])) == "done"
    (wake,) = woken(engine, activity_id).wakes
    assert (wake["blocker_type"], wake["blocker_resolution"]) == ("api_outage", "Restarted.")


def test_a_resolution_that_was_handed_on_falls_away_with_what_is_blocked(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, _, resolution = blocked(engine, acme)
    heir = api().post(of(resolution, "reassign"), {"human_role": "devops", "reason": "Yours."}).json()["id"]

    api().post(of(activity_id, "cancel"))

    assert engine.get(acme, UUID(heir)).cancel_reason == "obsolete"


def test_an_agent_is_never_asked_to_remove_a_blocker(api: Any, engine: Engine, acme: Tenant) -> None:
    _, _, resolution = blocked(engine, acme)

    refused = problem(
        api().post(of(resolution, "reassign"), {"agent_role": "dev", "reason": "x"}),
        409,
        "transition_refused",
    )

    assert "only a person can" in refused["detail"]


# While the agent's call still goes on


def while_called(
    engine: Engine, meanwhile: Callable[[Caller], None], then: Callable[[], AgentResult]
) -> None:
    """The agent's first call does `meanwhile` and then ends; every later one accepts."""

    def behaviour(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) > 1:
            return Accepted()
        meanwhile(Caller(request))
        return then()

    engine.agent.behaviour = behaviour


def raised(error: Exception) -> AgentResult:
    raise error


ENDS: dict[str, Callable[[], AgentResult]] = {
    "result": lambda: Completed(Output("never mind")),
    "202": Accepted,
    "error": lambda: raised(PermanentAgentError("gave up")),
    "passing error": lambda: raised(RetryableAgentError("gave up")),
}


@pytest.mark.parametrize("end", ENDS)
def test_however_the_call_ends_after_the_blocker_the_work_stays_blocked(
    engine: Engine, acme: Tenant, end: str
) -> None:
    while_called(engine, lambda agent: elsewhere(lambda: agent.used("report_blocker", **DOWN)), ENDS[end])

    (activity_id,) = engine.submit(acme)
    engine.drain()

    (run,) = engine.runs(acme, activity_id)
    waiting = engine.get(acme, activity_id)
    assert (waiting.status, waiting.output_ref, run.status) == ("blocked", None, "completed")
    assert (waiting.error, run.error) == (None, None)


def test_a_result_after_the_blocker_leaves_its_session_and_its_usage_and_nothing_else(
    engine: Engine, acme: Tenant
) -> None:
    result = Completed(Output("never mind"), Usage(input_tokens=5, output_tokens=7), session_id="s-1")
    while_called(
        engine, lambda agent: elsewhere(lambda: agent.used("report_blocker", **DOWN)), lambda: result
    )

    (activity_id,) = engine.submit(acme)
    engine.drain()

    (run,) = engine.runs(acme, activity_id)
    assert (run.session_id, run.usage["input_tokens"], run.usage["output_tokens"]) == ("s-1", 5, 7)
    assert engine.get(acme, activity_id).output_ref is None


@pytest.mark.parametrize("end", ENDS)
def test_what_is_resolved_during_the_call_runs_exactly_once_more_and_after_it(
    api: Any, engine: Engine, acme: Tenant, end: str
) -> None:
    ready: list[int] = []

    def meanwhile(agent: Caller) -> None:
        elsewhere(lambda: agent.used("report_blocker", **DOWN))
        elsewhere(lambda: api("reviewer").post(of(agent.activity_id, "resolve"), {"note": "Up."}))
        ready.append(engine.messages())

    while_called(engine, meanwhile, ENDS[end])
    (activity_id,) = engine.submit(acme)
    assert engine.deliver()

    assert (ready, engine.messages()) == ([0], 1)
    engine.drain()
    assert [call.wake_reason for call in engine.agent.calls] == ["new_task", "unblocked"]
    assert engine.status(acme, activity_id) == "in_progress"


def test_a_second_delivery_during_the_call_starts_nothing_although_the_work_was_resolved(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    calls: list[int] = []

    def meanwhile(agent: Caller) -> None:
        elsewhere(lambda: agent.used("report_blocker", **DOWN))
        elsewhere(lambda: tasks.run(**message))  # finds the work blocked
        elsewhere(lambda: api("reviewer").post(of(agent.activity_id, "resolve"), {"note": "Up."}))
        elsewhere(lambda: tasks.run(**message))  # finds it ready
        calls.append(len(engine.agent.calls) + engine.messages())

    while_called(engine, meanwhile, ENDS["result"])
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    assert message is not None
    tasks.run(**message)

    assert calls == [1]
    assert woken(engine, activity_id).wake_reason == "unblocked"
    assert len(engine.runs(acme, activity_id)) == 2


def test_a_redis_that_is_wiped_during_the_call_does_not_start_the_work_beside_it(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    ready: list[int] = []

    def meanwhile(agent: Caller) -> None:
        elsewhere(lambda: agent.used("report_blocker", **DOWN))
        elsewhere(rebuilding.rebuild)
        elsewhere(lambda: api("reviewer").post(of(agent.activity_id, "resolve"), {"note": "Up."}))
        ready.append(engine.messages())

    while_called(engine, meanwhile, ENDS["result"])
    (activity_id,) = engine.submit(acme)
    assert engine.deliver()

    assert ready == [0]
    assert woken(engine, activity_id).wake_reason == "unblocked"


def test_what_was_resolved_and_cancelled_during_the_call_does_not_run_again(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    def meanwhile(agent: Caller) -> None:
        elsewhere(lambda: agent.used("report_blocker", **DOWN))
        elsewhere(lambda: api("reviewer").post(of(agent.activity_id, "resolve"), {"note": "Up."}))
        elsewhere(lambda: cancellation.cancel(acme.pk, agent.activity_id, actor="test"))

    while_called(engine, meanwhile, ENDS["result"])
    (activity_id,) = engine.submit(acme)
    engine.drain()

    assert (engine.status(acme, activity_id), len(engine.agent.calls)) == ("cancelled", 1)
    engine.serve(acme, "qa", max_concurrency=1)
    engine.submit(acme)
    assert engine.drain() == 1  # its slot is free


# What an agent hears that goes on talking


def test_an_agent_that_put_its_work_aside_is_told_to_stop(engine: Engine, acme: Tenant) -> None:
    activity_id, agent, _ = blocked(engine, acme)

    beat = agent.post("heartbeat", {"progress": "still here"}).json()
    late = agent.post("complete", {**OUTPUT, "session_id": "s-1", "usage": {"input_tokens": 3}})
    failed = agent.post("fail", {"error": {"message": "x", "retryable": True}})

    assert (beat["stop"], "report_blocker" in beat["reason"]) == (True, True)
    for answer in (late, failed):
        assert (answer.status_code, answer.json()) == (
            200,
            {"accepted": False, "duplicate": False, "stop": True},
        )
    over(agent.job(), "report_blocker")
    (run,) = engine.runs(acme, activity_id)
    assert (run.session_id, run.usage["input_tokens"]) == ("s-1", 3)
    assert engine.status(acme, activity_id) == "blocked"


def test_a_late_result_of_the_run_that_was_put_aside_does_not_touch_the_next_one(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent, _ = blocked(engine, acme)
    api("reviewer").post(of(activity_id, "resolve"), {"note": "Up."})
    woken(engine, activity_id)

    assert agent.post("complete", OUTPUT).json()["accepted"] is False

    assert engine.status(acme, activity_id) == "in_progress"
    assert [run.status for run in engine.runs(acme, activity_id)] == ["completed", "running"]


def test_a_blocker_in_a_pipeline_holds_the_next_step_until_it_is_resolved(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    steps = [{"id": "a", "agent_role": "qa"}, {"id": "b", "agent_role": "dev"}]
    versions.save(acme.pk, {"key": "two", "name": "Two", "steps": steps}, actor="test")
    run = start_run(acme.pk, "two", NewRun(), actor="test")
    engine.drain()
    agent = Caller(engine.agent.calls[-1])
    resolution = agent.used("report_blocker", **DOWN)

    api("reviewer").post(of(resolution, "resolve"), {"note": "Up."})
    woken(engine, agent.activity_id)
    caller_of(engine, agent.activity_id).post("complete", OUTPUT)
    engine.drain()
    Caller(engine.agent.calls[-1]).post("complete", OUTPUT)

    assert [call.pipeline_step for call in engine.agent.calls] == ["a", "a", "b"]
    with tenant_scope(acme.pk):
        assert PipelineRun.objects.get(pk=run.pk).status == "completed"
    assert [resolution.step for resolution in children(acme, agent.activity_id)] == [None]
