"""An agent hands its work on: what its successor has, and how often that may be."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from activities.states import LinkKind
from tenants.models import Tenant
from tests.answers import problem
from tests.engine import Engine
from tests.integration.reassignment.heirs import TO_AGENT, TO_PERSON, fail, heir_of
from tests.toolbox import (
    OUTPUT,
    at_work,
    caller_of,
    child,
    count_of,
    of,
    woken,
)

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_an_agent_hands_its_work_on_with_everything_that_belongs_to_it(engine: Engine, acme: Tenant) -> None:
    fields = {
        "description": "All about bees", "priority": 5, "params": {"words": 900}, "metadata": {"client": "apiary"},
        "input": {"content": "notes", "data": {"a": 1}}, "group_key": "site", "max_attempts": 7, "timeout_seconds": 44,
        "retry": {"base_seconds": 3},
    }  # fmt: skip
    activity_id, agent = at_work(engine, acme, **fields)

    answer = agent.use("reassign_task", **TO_AGENT).json()

    first, heir = engine.get(acme, activity_id), heir_of(acme, activity_id)
    assert answer == {"id": str(heir.pk), "status": "reassigned", "stop": True, "duplicate": False}
    assert (first.status, first.reassign_reason) == ("reassigned", "Yours.")
    kept = (
        "name",
        "description",
        "priority",
        "params",
        "input",
        "group_key",
        "max_attempts",
        "timeout_seconds",
        "retry",
    )
    assert [getattr(heir, name) for name in kept] == [getattr(first, name) for name in kept]
    assert (heir.agent_role, heir.is_approval_gate, heir.status) == ("dev", False, "created")
    assert heir.metadata == {
        "client": "apiary", "reassigned_from": str(activity_id), "reassign_reason": "Yours.", "taken_over_from": "qa",
    }  # fmt: skip
    told = woken(engine, heir.pk)
    assert (told.wake_reason, told.agent_role) == ("new_task", "dev")
    assert told.wakes[0]["reassigned_from"] == str(activity_id)
    assert (told.input or {})["content"] == "notes"


def test_the_run_that_handed_on_is_over_and_its_slot_is_free(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", max_concurrency=1)
    activity_id, agent = at_work(engine, acme)
    (behind,) = engine.submit(acme)

    agent.used("reassign_task", **TO_AGENT)
    engine.drain()

    assert engine.status(acme, behind) == "in_progress"
    (run,) = engine.runs(acme, activity_id)
    assert (run.status, run.ended_by_tool) == ("completed", "reassign_task")
    assert agent.post("heartbeat").json()["stop"] is True
    assert agent.post("complete", OUTPUT).json() == {"accepted": False, "duplicate": False, "stop": True}


def test_a_dedup_key_goes_with_the_work(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme, dedup_key="once")

    agent.used("reassign_task", **TO_AGENT)

    again = api().post("/api/v1/activities/", {"name": "again", "agent_role": "qa", "dedup_key": "once"})
    assert (again.status_code, again.json()["id"]) == (200, str(heir_of(acme, activity_id).pk))


def test_a_dedup_key_that_is_taken_by_now_stays_where_it_is(api: Any, engine: Engine, acme: Tenant) -> None:
    activity_id, agent = at_work(engine, acme, dedup_key="once")
    fail(agent)
    (twin,) = engine.submit(acme, dedup_key="once")
    client = api("operator")

    refused = problem(client.post(of(activity_id, "retry")), 409, "transition_refused")
    heir = client.post(of(activity_id, "reassign"), TO_AGENT)

    assert str(twin) in refused["detail"]
    assert (heir.status_code, heir.json()["dedup_key"]) == (201, None)


def test_work_is_handed_on_three_times_and_not_more(api: Any, engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    second = agent.used("reassign_task", agent_role="dev", reason="x")
    third = UUID(api().post(of(second, "reassign"), {"agent_role": "qa", "reason": "Back."}).json()["id"])
    engine.drain()
    fourth = caller_of(engine, third).used("reassign_task", agent_role="seo", reason="x")
    engine.drain()

    refused = problem(caller_of(engine, fourth).use("reassign_task", **TO_PERSON), 429, "quota_exceeded")

    assert refused["quota"] == "reassignments"
    assert (engine.status(acme, fourth), count_of(acme)) == ("in_progress", 4)


@pytest.mark.parametrize("back_to", ["qa", "dev"])
def test_an_agent_never_hands_back_to_a_role_that_has_had_the_work(
    engine: Engine, acme: Tenant, back_to: str
) -> None:
    _, agent = at_work(engine, acme)
    heir = agent.used("reassign_task", **TO_AGENT)
    engine.drain()

    refused = problem(
        caller_of(engine, heir).use("reassign_task", agent_role=back_to, reason="x"), 403, "tool_refused"
    )

    assert f"{back_to} has had this work before" in refused["detail"]
    assert (engine.status(acme, heir), count_of(acme)) == ("in_progress", 2)


def test_a_revision_in_between_does_not_make_the_agents_forget_who_had_the_work(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    _, agent = at_work(engine, acme, requires_approval=True)
    heir = agent.used("reassign_task", **TO_AGENT)
    engine.drain()
    caller_of(engine, heir).post("complete", OUTPUT)
    api("reviewer").post(of(heir, "reject"), {"notes": "Again."})
    engine.drain()
    revision = child(acme, heir, LinkKind.REVISION_OF).pk

    problem(
        caller_of(engine, revision).use("reassign_task", agent_role="qa", reason="x"), 403, "tool_refused"
    )


def test_an_operator_may_hand_back(api: Any, engine: Engine, acme: Tenant) -> None:
    _, agent = at_work(engine, acme)
    heir = agent.used("reassign_task", **TO_AGENT)

    assert (
        api("operator").post(of(heir, "reassign"), {"agent_role": "qa", "reason": "Do it."}).status_code
        == 201
    )


def test_a_decision_about_work_that_a_person_has_done_by_hand_is_told_who_completed_it(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = at_work(engine, acme)
    agent.used("reassign_task", **TO_PERSON)
    heir = heir_of(acme, activity_id).pk
    assert api("reviewer", name="Bob").post(of(heir, "complete"), OUTPUT).status_code == 200

    late = problem(api("reviewer").post(of(heir, "approve")), 409, "already_decided")

    assert late["detail"].startswith("token:Bob completed this at ")
