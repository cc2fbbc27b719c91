"""Reasons for waiting on people and subtasks, with who must answer and until when, and the timelines of such activities."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities import cancellation, dead_letters
from activities.decision_rules import Later
from activities.human_tasks import decisions
from activities.maintenance import recovery
from activities.models import Activity
from activities.states import LinkKind
from activities.wait_reasons import explain_many
from tenants import clock
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tests.accepted_work import RESULT, accept_work, action_url, agent_of, child
from tests.engine import Engine
from tests.integration.approvals_over_many.voters import voter
from tests.open_questions import open_approval
from tests.superusers import create_superuser

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")

ACTIVITIES = "/api/v1/activities/"
DUE = r"editor, due 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"


@pytest.fixture
def why(api: Any, acme: Tenant) -> Callable[[UUID], dict[str, Any]]:
    """Explain why an activity waits; checks that lists give the same reason in short."""
    client = api("viewer")

    def explain(activity_id: UUID) -> dict[str, Any]:
        full = client.get(f"{ACTIVITIES}{activity_id}/why/").json()
        listed = {item["id"]: item["waiting_for"] for item in client.get(ACTIVITIES).json()["results"]}
        short = {name: full[name] for name in ("code", "detail", "holder")}
        assert listed[str(activity_id)] == short
        return full

    return explain


def test_work_that_expired_says_so_and_when(engine: Engine, acme: Tenant, api: Any) -> None:
    expired, cancelled = engine.submit(acme, count=2, expires_at=clock.now() + timedelta(days=1))
    cancellation.cancel(acme.pk, cancelled, actor="user:ann", reason="expired")
    with tenant_scope(acme.pk):
        Activity.objects.filter(pk=expired).update(expires_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    recovery.expire_stale()

    reasons = [api("viewer").get(f"{ACTIVITIES}{work}/why/").json() for work in (expired, cancelled)]

    assert [(reason["code"], reason["detail"]) for reason in reasons] == [
        (None, "It expired at 2026-01-02 03:04:05 UTC."),
        (None, "It was cancelled by user:ann: expired"),
    ]


def test_cancelled_work_says_who_cancelled_it_and_why(engine: Engine, acme: Tenant, api: Any) -> None:
    asks, agent = accept_work(engine, acme)
    review = agent.create_with("request_human_review", question="Is this right?")
    (silently,) = engine.submit(acme)
    cancellation.cancel(acme.pk, asks, actor="user:ann", reason="No more money.")
    cancellation.cancel(acme.pk, silently, actor="user:bob")

    reasons = [api("viewer").get(f"{ACTIVITIES}{work}/why/").json() for work in (asks, review, silently)]

    assert [reason["detail"] for reason in reasons] == [
        "It was cancelled by user:ann: No more money.",
        f"It was cancelled by user:ann, because activity {asks} does not need it any more.",
        "It was cancelled by user:bob.",
    ]
    with tenant_scope(acme.pk):
        listed = explain_many(acme.pk, Activity.objects.filter(pk__in=[asks, review, silently]))
    assert [listed[work].detail for work in (asks, review, silently)] == [
        "It was cancelled: No more money.",
        f"It was cancelled, because activity {asks} does not need it any more.",
        "It was cancelled.",
    ]


def test_a_blocked_activity_waits_for_the_role_that_resolves_it(
    engine: Engine, acme: Tenant, why: Any
) -> None:
    activity_id, agent = accept_work(engine, acme, metadata={"resolver_role": "devops"})
    agent.create_with("report_blocker", type="x", message="y")

    reason = why(activity_id)

    assert (reason["code"], reason["detail"], reason["holder"]) == (
        "human",
        "It waits until a person resolves the blocker.",
        "devops",
    )
    since = engine.get(acme, activity_id).blocked_at
    assert since is not None
    assert abs((datetime.fromisoformat(reason["since"]) - since).total_seconds()) < 1


def test_a_reassigned_resolution_is_named_with_its_new_role(
    api: Any, engine: Engine, acme: Tenant, why: Any
) -> None:
    activity_id, agent = accept_work(engine, acme)
    resolution = agent.create_with("report_blocker", type="x", message="y")
    api().post(action_url(resolution, "reassign"), {"human_role": "devops", "reason": "Yours."})

    assert why(activity_id)["holder"] == "devops"


def test_a_requested_review_is_named_with_its_role(engine: Engine, acme: Tenant, why: Any) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.create_with("request_human_review", question="?", human_role="editor")

    reason = why(activity_id)

    assert (reason["code"], reason["detail"]) == ("human", "It waits for a review by a person.")
    assert reason["holder"] == "editor"


def test_an_approval_that_the_agent_requested_is_named_with_title_and_role(
    engine: Engine, acme: Tenant, why: Any
) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.create_with("create_approval", type="x", title="Which way?", human_role="editor")

    reason = why(activity_id)

    assert (reason["code"], reason["detail"]) == ("human", "It waits for a decision.")
    assert reason["holder"] == "Which way?: editor"


def test_an_activity_that_an_approval_holds_before_its_start_names_the_approval(
    engine: Engine, acme: Tenant, why: Any
) -> None:
    _, agent = accept_work(engine, acme)
    held = agent.create_with("create_subtask", name="part", agent_role="ba", blocking=False)
    agent.create_with(
        "create_approval",
        type="x",
        title="Shall we?",
        human_role="editor",
        activity_ids=[str(held)],
    )

    reason = why(held)

    assert engine.status(acme, held) == "awaiting_review"
    assert (reason["code"], reason["detail"]) == ("human", "It does not start before somebody has decided.")
    assert reason["holder"] == "Shall we?: editor"


def test_after_an_answered_review_the_activity_waits_for_the_next_approval(
    api: Any, engine: Engine, acme: Tenant, why: Any
) -> None:
    activity_id, agent = accept_work(engine, acme)
    review = agent.create_with("request_human_review", question="?", human_role="boss")
    api().post(action_url(review, "review"), {"approved": True})
    engine.drain()
    agent_of(engine, activity_id).create_with(
        "create_approval", type="x", title="And now?", human_role="editor"
    )

    assert why(activity_id)["holder"] == "And now?: editor"


def test_a_result_that_needs_approval_waits_for_its_approver(engine: Engine, acme: Tenant, why: Any) -> None:
    activity_id, agent = accept_work(
        engine,
        acme,
        requires_approval=True,
        metadata={"approver_role": "editor"},
        decision_rules={"due_seconds": 600},
    )
    agent.post("complete", RESULT)

    reason = why(activity_id)

    assert (reason["code"], reason["detail"]) == ("human", "It waits for a decision about the result.")
    assert re.fullmatch(DUE, reason["holder"])


def test_a_subtask_of_an_agent_is_a_dependency_with_its_status(
    engine: Engine, acme: Tenant, why: Any
) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.create_with("create_subtask", name="idle", agent_role="ba", blocking=False)
    agent.create_with("create_subtask", name="Look it up", agent_role="dev", blocking=True)
    engine.drain()

    reason = why(activity_id)

    assert (reason["code"], reason["detail"], reason["holder"]) == (
        "dependency", "The subtask must end first.", "Look it up (in_progress)",
    )  # fmt: skip


def test_a_subtask_of_a_person_is_a_wait_for_that_person(engine: Engine, acme: Tenant, why: Any) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.create_with("create_subtask", name="Read it", human_role="editor", blocking=True)

    reason = why(activity_id)

    assert (reason["code"], reason["detail"], reason["holder"]) == (
        "human",
        "It waits for a subtask of a person.",
        "Read it: editor",
    )


def test_a_reassigned_subtask_names_the_role_of_its_successor(
    api: Any, engine: Engine, acme: Tenant, why: Any
) -> None:
    activity_id, agent = accept_work(engine, acme)
    subtask = agent.create_with("create_subtask", name="Look it up", agent_role="ba", blocking=True)
    api().post(action_url(subtask, "reassign"), {"human_role": "editor", "reason": "x"})

    reason = why(activity_id)

    assert (reason["code"], reason["holder"]) == ("human", "Look it up: editor")


def test_permanently_failed_work_waits_for_an_operator(engine: Engine, acme: Tenant, why: Any) -> None:
    activity_id, agent = accept_work(engine, acme)
    agent.post("fail", {"error": {"message": "x", "retryable": False}})
    dead_letters.handle_waiting()

    reason = why(activity_id)

    assert (reason["code"], reason["holder"]) == ("human", "operator")


def test_a_page_of_waiting_activities_takes_the_same_statements_however_many_it_lists(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("viewer")

    def statements() -> int:
        # A slow machine repeats statements whose results are cached for a second.
        return min(statements_of_one_request() for _ in range(3))

    def statements_of_one_request() -> int:
        client.get(ACTIVITIES)  # so that the token is cached
        with CaptureQueriesContext(connections[APP]) as captured:
            assert (
                client.get(f"{ACTIVITIES}?status=blocked,awaiting_review,awaiting_subtask").status_code == 200
            )
        return len(captured)

    def add_three_waiting() -> None:
        for tool, arguments in (
            ("report_blocker", {"type": "x", "message": "y"}), ("create_approval", {"type": "x", "title": "y"}),
            ("create_subtask", {"name": "z", "agent_role": "ba", "blocking": True}),
        ):  # fmt: skip
            accept_work(engine, acme)[1].create_with(tool, **arguments)

    add_three_waiting()
    few = statements()
    add_three_waiting()
    add_three_waiting()

    assert statements() == few


# Timelines


def moments(api: Any, activity_id: Any, kind: str) -> list[dict[str, Any]]:
    timeline = api("viewer").get(f"{ACTIVITIES}{activity_id}/timeline/").json()["results"]
    assert [moment["at"] for moment in timeline] == sorted(moment["at"] for moment in timeline)
    return [moment for moment in timeline if moment["kind"] == kind]


def test_the_timeline_of_an_agents_work_lists_its_tool_calls_and_what_they_created(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = accept_work(engine, acme)
    part = agent.create_with("create_subtask", name="part", agent_role="ba", blocking=False)
    review = agent.create_with("request_human_review", question="?")

    timeline = moments(api, activity_id, "tool_call")

    assert [(call["tool"], call["created"], call["stop"]) for call in timeline] == [
        ("create_subtask", str(part), False), ("request_human_review", str(review), True),
    ]  # fmt: skip
    assert {call["run"] for call in timeline} == {str(agent.run_id)}


def test_the_timeline_of_a_question_lists_votes_and_deadlines(api: Any, engine: Engine, acme: Tenant) -> None:
    rules: dict[str, Any] = {"reminders": (Later(60),), "escalation": (Later(300, "boss"),)}
    item = open_approval(acme, options=("a", "b"), quorum=2, due_seconds=600, **rules)
    decisions.approve(acme.pk, item, actor=voter("Ann"), notes="Fine.", chosen_option="a")

    (vote,) = moments(api, item, "vote")
    deadlines = moments(api, item, "deadline")

    assert (vote["actor"], vote["decision"], vote["chosen_option"], vote["notes"]) == (
        "Ann",
        "approve",
        "a",
        "Fine.",
    )
    assert [(deadline["deadline"], deadline["happened_at"]) for deadline in deadlines] == [
        ("reminder", None), ("escalation", None), ("due", None),
    ]  # fmt: skip
    assert deadlines[1]["human_role"] == "boss"


def test_the_timeline_in_the_admin_lists_tool_calls_and_deadlines(engine: Engine, acme: Tenant) -> None:
    browser = Client()
    browser.force_login(create_superuser())
    activity_id, agent = accept_work(engine, acme)
    item = agent.create_with("create_approval", type="x", title="Which way?")
    due = open_approval(acme, due_seconds=600)
    with tenant_scope(acme.pk):
        assert child(acme, activity_id, LinkKind.APPROVAL).pk == item

    page = browser.get(f"/admin/activities/activity/{activity_id}/change/").content.decode()
    page_of_due = browser.get(f"/admin/activities/activity/{due}/change/").content.decode()

    assert "<b>Tool</b> create_approval" in page
    assert f"/admin/activities/activity/{item}/change/" in page
    assert "<b>Deadline</b> due" in page_of_due
