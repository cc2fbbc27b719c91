"""The answer to a blocker, anyone who gives it, lets the agent go on once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pipelines import versions
from pipelines.models import PipelineRun
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.integration.blockers.blocked_work import DOWN, blocked
from tests.toolbox import (
    OUTPUT,
    Caller,
    at_work,
    caller_of,
    children,
    not_woken,
    of,
    wakes_of,
    woken,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")


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


@pytest.mark.parametrize("body", [{}, {"note": " "}, {"output": {"content": "Up."}}])
def test_a_resolution_is_not_completed_without_a_note(
    api: Any, engine: Engine, acme: Tenant, body: dict[str, Any]
) -> None:
    """The note is what the blocked agent works by, whichever way the answer is given."""
    activity_id, _, resolution = blocked(engine, acme)
    heir = api().post(of(resolution, "reassign"), {"human_role": "devops", "reason": "Yours."}).json()["id"]

    refused = problem(api("reviewer").post(of(heir, "complete"), body), 400, "validation_failed")

    assert [error["path"] for error in refused["errors"]] == ["note"]
    assert engine.status(acme, activity_id) == "blocked"
    assert api("reviewer").post(of(heir, "complete"), {**body, "note": "Up."}).status_code == 200
    assert woken(engine, activity_id).wakes[0]["blocker_resolution"] == "Up."


@pytest.mark.parametrize("decision", ["complete", "resolve"])
def test_the_inbox_asks_for_the_note_of_a_resolution_too(
    api: Any, engine: Engine, acme: Tenant, decision: str
) -> None:
    activity_id, _, resolution = blocked(engine, acme)
    item = {"id": str(resolution), "decision": decision, "notes": ""}

    answer = api("reviewer").post("/api/v1/inbox/decide/", {"items": [item]})

    body = answer.json() if answer.status_code == 400 else answer.json()["results"][0]["problem"]
    assert [error["path"].rpartition(".")[2] for error in body["errors"]] == ["notes"]
    assert engine.status(acme, activity_id) == "blocked"


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
