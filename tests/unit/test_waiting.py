"""How the state of an activity in admission becomes a wait reason for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from activities.models import Activity
from activities.wait_reasons import explain_counterparts, reason_of_state

TENANT = "018f0000-0000-7000-8000-000000000001"


def waiting(at: str, **facts: Any) -> dict[str, Any]:
    return {"state": "waiting", "at": at, "position": 3, "duration": 4, "seats": 2, "taken": 1, **facts}


@pytest.mark.parametrize(
    ("scope", "code", "holder"),
    [
        (f"pair:{TENANT}:seo", "tenant_cap", "2 of 2 running for seo of this tenant"),
        (f"tenant:{TENANT}", "tenant_cap", "2 of 2 running for all roles of this tenant"),
        ("role:seo", "role_cap", "2 of 2 running for seo over all tenants"),
        (f"group:{TENANT}:seo:site:7", "group_cap", "2 of 2 running for seo in the group site:7"),
        ("global", "global_cap", "2 of 2 running for all roles together"),
    ],
)
def test_a_full_scope_is_named_with_its_use(scope: str, code: str, holder: str) -> None:
    reason = reason_of_state(waiting(scope, cap=2, used=2), role="seo")

    assert (reason.code, reason.holder, reason.position) == (code, holder, 3)
    assert (
        reason.detail
        == f"The limit of concurrent runs is reached for {holder.removeprefix('2 of 2 running for ')}."
    )


def test_the_estimate_counts_the_work_ahead_in_rounds_of_the_cap() -> None:
    assert reason_of_state(waiting("role:seo", cap=2, used=2), role="seo").estimate_seconds == 6.0


def test_a_limit_of_zero_is_a_pause() -> None:
    assert reason_of_state(waiting(f"tenant:{TENANT}", cap=0, used=1), role="seo").code == "paused"


@pytest.mark.parametrize("state", [waiting("worker:seo", seats=0), waiting("ready", seats=0)])
def test_work_of_a_role_without_workers_has_the_reason_no_worker(state: dict[str, Any]) -> None:
    reason = reason_of_state(state, role="seo")

    assert (reason.code, reason.estimate_seconds) == ("no_worker", None)


def test_ready_work_behind_busy_workers_is_queued_and_its_reason_says_how_busy_they_are() -> None:
    reason = reason_of_state(waiting("ready", taken=2), role="seo")

    assert (reason.code, reason.holder, reason.estimate_seconds) == (
        "queued",
        "2 of 2 seats taken at the workers of seo",
        6.0,
    )


@pytest.mark.parametrize(
    "state",
    [{"state": "closed"}, {"state": "unknown"}, {"state": "held", "started": False, "grant": "g-1"}],
)
def test_work_that_admission_does_not_hold_back_is_queued(state: dict[str, Any]) -> None:
    assert reason_of_state(state, role="seo").code == "queued"


def item(**fields: Any) -> Activity:
    return Activity(**{"name": "Ask", "assignee_type": "human", "human_role": "editor", **fields})


@pytest.mark.parametrize(
    ("status", "awaited", "code", "detail", "holder"),
    [
        ("blocked", item(), "human", "It waits until a person resolves the blocker.", "editor"),
        ("awaiting_review", item(link_kind="review"), "human", "It waits for a review by a person.", "editor"),
        ("awaiting_approval", item(link_kind="gate"), "human", "It waits for a decision about the result.", "editor"),
        ("awaiting_review", item(link_kind="approval"), "human", "It does not start before somebody has decided.", "Ask: editor"),
        ("awaiting_subtask", item(link_kind="subtask"), "human", "It waits for a subtask of a person.", "Ask: editor"),
        (
            "awaiting_subtask", item(assignee_type="agent", agent_role="qa", status="failed"), "dependency",
            "The subtask must end first.", "Ask (failed)",
        ),
        ("awaiting_subtask", None, "dependency", "The subtask must end first.", None),
        ("blocked", None, "human", "It waits until a person resolves the blocker.", None),
        ("awaiting_review", None, "human", "It waits for a review by a person.", None),
    ],
)  # fmt: skip
def test_work_that_waits_for_other_work_names_it(
    status: str, awaited: Activity | None, code: str, detail: str, holder: str | None
) -> None:
    reason = explain_counterparts(Activity(status=status), [awaited] if awaited else [])

    assert (reason.code, reason.detail, reason.holder) == (code, detail, holder)


def test_a_person_is_named_with_the_time_that_they_have() -> None:
    due = datetime(2031, 5, 1, 14, tzinfo=timezone(timedelta(hours=2)))

    reason = explain_counterparts(Activity(status="blocked"), [item(due_at=due)])

    assert reason.holder == "editor, due 2031-05-01T12:00:00Z"


def test_an_approval_asked_for_by_work_that_had_begun_does_not_hold_its_start() -> None:
    started = Activity(status="awaiting_review", started_at=datetime(2031, 5, 1, tzinfo=UTC))

    assert explain_counterparts(started, [item(link_kind="approval")]).detail == "It waits for a decision."


def test_work_that_waits_for_several_answers_names_each() -> None:
    started = Activity(status="awaiting_review", started_at=datetime(2031, 5, 1, tzinfo=UTC))
    due = datetime(2031, 5, 1, 14, tzinfo=UTC)
    review = item(link_kind="review", name="Review: Write")
    approvals = [
        item(link_kind="approval"),
        item(link_kind="approval", name="Go?", human_role="cfo", due_at=due),
    ]

    reason = explain_counterparts(started, [review, *approvals])

    assert (
        reason.detail == "It waits for a review by a person. It continues when all 3 open requests are done."
    )
    assert reason.holder == "Review: Write: editor; Ask: editor; Go?: cfo, due 2031-05-01T14:00:00Z"
