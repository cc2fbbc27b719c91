"""Decision rules of questions that are created with other requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from activities import cancellation
from pipelines import versions
from pipelines.schedules import system_jobs
from tenants.models import Tenant
from tests.accepted_work import children
from tests.answers import problem
from tests.cases import in_one_test
from tests.engine import Engine
from tests.integration.approvals_api.addresses import INBOX

pytestmark = pytest.mark.usefixtures("one_at_a_time")


def test_a_gate_for_a_person_takes_the_same_rules_as_an_approval(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    body = {
        "name": "Sign", "human_role": "editor", "is_approval_gate": True, "quorum": 2, "voters": 3,
        "due_seconds": 60, "on_timeout": "reject", "options": ["a", "b"], "reminders": [30],
    }  # fmt: skip
    asker = api("operator", name="Asker")

    task = asker.post("/api/v1/activities/", body).json()

    assert task["due_at"]
    problem(asker.post(f"/api/v1/activities/{task['id']}/approve/"), 403, "forbidden")
    for name in ("Ann", "Bob"):
        api("reviewer", name=name, person=name).post(
            f"/api/v1/activities/{task['id']}/approve/", {"chosen_option": "b"}
        )
    decided = engine.get(acme, UUID(task["id"]))
    assert (decided.status, decided.chosen_option) == ("approved", "b")


@in_one_test(
    ("members", "path"),
    [
        ({"human_role": "editor", "quorum": 2}, "quorum"),
        ({"human_role": "editor", "due_seconds": 5, "on_timeout": "approve"}, "on_timeout"),
        ({"agent_role": "qa", "due_seconds": 5}, "due_seconds"),
        ({"agent_role": "qa", "is_approval_gate": True}, "is_approval_gate"),
    ],
)
def test_rules_without_a_meaning_are_refused(
    api: Any, engine: Engine, acme: Tenant, members: Any, path: str
) -> None:
    refused = problem(
        api("operator").post("/api/v1/activities/", {"name": "x", **members}), 400, "validation_failed"
    )

    assert path in [fault["path"] for fault in refused["errors"]]


@in_one_test("kind", ["approvals", "activities"])
def test_a_question_with_options_cannot_be_approved_by_its_due_time(
    api: Any, engine: Engine, acme: Tenant, kind: str
) -> None:
    asked = {
        "approvals": {"type": "brand_direction", "title": "Which brand?"},
        "activities": {"name": "Sign", "human_role": "editor", "is_approval_gate": True},
    }
    body = {**asked[kind], "options": ["a", "b"], "due_seconds": 60}

    refused = problem(
        api("operator").post(f"/api/v1/{kind}/", {**body, "on_timeout": "approve"}), 400, "validation_failed"
    )

    assert refused["errors"] == [
        {
            "path": "on_timeout",
            "message": "must not be approve if there are options: a person must choose one",
        }
    ]
    for outcome in ("reject", "escalate"):
        assert api("operator").post(f"/api/v1/{kind}/", {**body, "on_timeout": outcome}).status_code == 201
    without_due = {**body, "on_timeout": "approve", "due_seconds": None}
    both = problem(api("operator").post(f"/api/v1/{kind}/", without_due), 400, "validation_failed")
    assert [error["message"].split()[0] for error in both["errors"]] == ["needs", "must"]


def test_the_gate_of_submitted_work_has_the_rules_of_the_submission(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    body = {"name": "x", "agent_role": "qa", "requires_approval": True, "quorum": 2, "due_seconds": 60}
    asker = api("operator", name="Asker")
    work = UUID(asker.post("/api/v1/activities/", body).json()["id"])
    engine.drain()

    (gate,) = children(acme, work, "gate")

    assert gate.due_at is not None
    problem(asker.post(f"/api/v1/activities/{work}/approve/"), 403, "forbidden")
    api("reviewer", person="Ann").post(f"/api/v1/activities/{work}/approve/")
    assert engine.status(acme, work) == "awaiting_approval"
    api("reviewer", person="Bob").post(f"/api/v1/activities/{work}/approve/")
    assert engine.status(acme, work) == "approved"


def test_a_step_can_forbid_approval_by_whoever_started_the_run(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    step = {"id": "sign", "human_role": "editor", "is_approval_gate": True, "self_approval": False}
    versions.save(acme.pk, {"key": "signed", "name": "Signed", "steps": [step]}, actor="test")
    asker = api("operator", name="Asker")
    asker.post("/api/v1/pipelines/signed/runs/", {})
    (gate,) = asker.get(INBOX).json()["results"]

    problem(asker.post(f"/api/v1/activities/{gate['id']}/approve/"), 403, "forbidden")

    other = api("reviewer", person="Ann")
    assert other.post(f"/api/v1/activities/{gate['id']}/approve/").status_code == 200


@pytest.mark.parametrize("by", ["schedule", "plan"])
def test_whoever_starts_a_run_by_a_schedule_or_a_plan_cannot_approve_it_either(
    api: Any, engine: Engine, acme: Tenant, by: str
) -> None:
    step = {"id": "sign", "human_role": "editor", "is_approval_gate": True, "self_approval": False}
    versions.save(acme.pk, {"key": "signed", "name": "Signed", "steps": [step]}, actor="test")
    asker = api("admin", person="Ann")
    if by == "schedule":
        body = {
            "name": "Sign", "repeat": "repeating", "cron": "0 9 * * *", "target_type": "pipeline", "pipeline": "signed"
        }  # fmt: skip
        schedule = asker.post("/api/v1/schedules/", body).json()["id"]
        assert asker.post(f"/api/v1/schedules/{schedule}/run/").status_code == 201
        system_jobs.advance_executions()
    else:
        deliverable = asker.post(
            "/api/v1/deliverables/", {"key": "blog", "name": "Blog", "pipelines": ["signed"]}
        ).json()["id"]
        period = asker.post(f"/api/v1/deliverables/{deliverable}/start-period/").json()
        cancellation.cancel(
            acme.pk, UUID(period["planner_activity"].rstrip("/").rpartition("/")[2]), actor="test"
        )
        plan = {"items": [{"pipeline": "signed", "name": "Bees"}]}
        answer = asker.post(f"/api/v1/deliverable-periods/{period['id']}/plan/", {"plan": plan})
        assert answer.status_code == 200, answer.json()
    (gate,) = asker.get(INBOX).json()["results"]

    problem(asker.post(f"/api/v1/activities/{gate['id']}/approve/"), 403, "forbidden")

    other = api("reviewer", person="Bob")
    assert other.post(f"/api/v1/activities/{gate['id']}/approve/").status_code == 200


def test_repeated_submissions_are_counted_in_a_metric_without_their_tenant(
    api: Any, client: Any, engine: Engine, acme: Tenant
) -> None:
    body = {"name": "x", "agent_role": "qa", "dedup_key": "once"}
    answers = [api("operator").post("/api/v1/activities/", body) for _ in range(3)]

    text = client.get("/metrics").content.decode()

    assert [answer.json().get("deduplicated", False) for answer in answers] == [False, True, True]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert 'orchestrator_repeated_submissions_total{role="qa"} 2.0' in text
    assert "acme" not in text
