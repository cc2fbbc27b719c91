"""Why something waits that others must answer, and what its history tells: the right code, who is asked and until when, everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from activities import dead_letters
from activities.decision_rules import Later
from activities.human_tasks import approvals
from activities.states import LinkKind
from agents.contracts import Accepted
from tenants.context import APP, tenant_scope
from tenants.models import Tenant
from tests.engine import Engine
from tests.integration.approvals_over_many.voters import voter
from tests.open_questions import asked
from tests.superusers import seeing_all
from tests.toolbox import OUTPUT, at_work, caller_of, child, of

pytestmark = pytest.mark.usefixtures("one_at_a_time")

ACTIVITIES = "/api/v1/activities/"
DUE = r"editor, due 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"


@pytest.fixture
def acme(engine: Engine, tenant: Tenant) -> Tenant:
    engine.serve(tenant)
    engine.agent.behaviour = lambda request: Accepted()
    return tenant


@pytest.fixture
def why(api: Any, acme: Tenant) -> Callable[[UUID], dict[str, Any]]:
    """The answer for an activity, which lists give in short."""
    client = api("viewer")

    def told(activity_id: UUID) -> dict[str, Any]:
        full = client.get(f"{ACTIVITIES}{activity_id}/why/").json()
        listed = {item["id"]: item["waiting_for"] for item in client.get(ACTIVITIES).json()["results"]}
        short = {name: full[name] for name in ("code", "detail", "holder")}
        assert listed[str(activity_id)] == short
        return full

    return told


def test_a_blocked_activity_waits_for_whoever_resolves_it(engine: Engine, acme: Tenant, why: Any) -> None:
    activity_id, agent = at_work(engine, acme, metadata={"resolver_role": "devops"})
    agent.used("report_blocker", type="x", message="y")

    reason = why(activity_id)

    assert (reason["code"], reason["detail"], reason["holder"]) == (
        "human",
        "Somebody removes the blocker.",
        "devops",
    )
    since = engine.get(acme, activity_id).blocked_at
    assert since is not None
    assert abs((datetime.fromisoformat(reason["since"]) - since).total_seconds()) < 1


def test_a_resolution_that_went_to_somebody_else_is_named_with_that_person(
    api: Any, engine: Engine, acme: Tenant, why: Any
) -> None:
    activity_id, agent = at_work(engine, acme)
    resolution = agent.used("report_blocker", type="x", message="y")
    api().post(of(resolution, "reassign"), {"human_role": "devops", "reason": "Yours."})

    assert why(activity_id)["holder"] == "devops"


def test_a_review_is_named_with_who_is_asked(engine: Engine, acme: Tenant, why: Any) -> None:
    activity_id, agent = at_work(engine, acme)
    agent.used("request_human_review", question="?", human_role="editor")

    reason = why(activity_id)

    assert (reason["code"], reason["detail"]) == ("human", "Somebody reviews the work.")
    assert reason["holder"] == "editor"


def test_an_approval_that_the_agent_asked_for_is_named_with_title_and_role(
    engine: Engine, acme: Tenant, why: Any
) -> None:
    activity_id, agent = at_work(engine, acme)
    agent.used("create_approval", type="x", title="Which way?", human_role="editor")

    reason = why(activity_id)

    assert (reason["code"], reason["detail"]) == ("human", "Somebody decides what was asked.")
    assert reason["holder"] == "Which way?: editor"


def test_what_is_held_before_it_starts_says_so_and_names_the_approval(
    engine: Engine, acme: Tenant, why: Any
) -> None:
    _, agent = at_work(engine, acme)
    held = agent.used("create_subtask", name="part", agent_role="ba", blocking=False)
    agent.used(
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


def test_after_a_review_was_answered_the_approval_is_what_is_waited_for(
    api: Any, engine: Engine, acme: Tenant, why: Any
) -> None:
    activity_id, agent = at_work(engine, acme)
    review = agent.used("request_human_review", question="?", human_role="boss")
    api().post(of(review, "review"), {"approved": True})
    engine.drain()
    caller_of(engine, activity_id).used("create_approval", type="x", title="And now?", human_role="editor")

    assert why(activity_id)["holder"] == "And now?: editor"


def test_a_result_behind_a_gate_waits_for_its_reviewer(engine: Engine, acme: Tenant, why: Any) -> None:
    activity_id, agent = at_work(
        engine,
        acme,
        requires_approval=True,
        metadata={"approver_role": "editor"},
        decision_rules={"due_seconds": 600},
    )
    agent.post("complete", OUTPUT)

    reason = why(activity_id)

    assert (reason["code"], reason["detail"]) == ("human", "Somebody decides about the result.")
    assert re.fullmatch(DUE, reason["holder"])


def test_an_agents_subtask_is_a_dependency_and_its_status_is_told(
    engine: Engine, acme: Tenant, why: Any
) -> None:
    activity_id, agent = at_work(engine, acme)
    agent.used("create_subtask", name="idle", agent_role="ba", blocking=False)
    agent.used("create_subtask", name="Look it up", agent_role="dev", blocking=True)
    engine.drain()

    reason = why(activity_id)

    assert (reason["code"], reason["detail"], reason["holder"]) == (
        "dependency", "The subtask must end first.", "Look it up (in_progress)",
    )  # fmt: skip


def test_a_persons_subtask_is_waited_for_as_a_person_is(engine: Engine, acme: Tenant, why: Any) -> None:
    activity_id, agent = at_work(engine, acme)
    agent.used("create_subtask", name="Read it", human_role="editor", blocking=True)

    reason = why(activity_id)

    assert (reason["code"], reason["detail"], reason["holder"]) == (
        "human",
        "Somebody does the subtask.",
        "Read it: editor",
    )


def test_the_heir_of_a_subtask_is_who_is_waited_for(api: Any, engine: Engine, acme: Tenant, why: Any) -> None:
    activity_id, agent = at_work(engine, acme)
    subtask = agent.used("create_subtask", name="Look it up", agent_role="ba", blocking=True)
    api().post(of(subtask, "reassign"), {"human_role": "editor", "reason": "x"})

    reason = why(activity_id)

    assert (reason["code"], reason["holder"]) == ("human", "Look it up: editor")


def test_what_has_failed_for_good_waits_for_an_operator(engine: Engine, acme: Tenant, why: Any) -> None:
    activity_id, agent = at_work(engine, acme)
    agent.post("fail", {"error": {"message": "x", "retryable": False}})
    dead_letters.handle_waiting()

    reason = why(activity_id)

    assert (reason["code"], reason["holder"]) == ("human", "operator")


def test_a_page_of_what_waits_costs_the_same_however_much_is_on_it(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("viewer")

    def statements() -> int:
        # What is known for a second is asked for again on a slow machine.
        return min(statements_of_a_look() for _ in range(3))

    def statements_of_a_look() -> int:
        client.get(ACTIVITIES)  # the token is known for a while
        with CaptureQueriesContext(connections[APP]) as captured:
            assert (
                client.get(f"{ACTIVITIES}?status=blocked,awaiting_review,awaiting_subtask").status_code == 200
            )
        return len(captured)

    def three_that_wait() -> None:
        for tool, arguments in (
            ("report_blocker", {"type": "x", "message": "y"}), ("create_approval", {"type": "x", "title": "y"}),
            ("create_subtask", {"name": "z", "agent_role": "ba", "blocking": True}),
        ):  # fmt: skip
            at_work(engine, acme)[1].used(tool, **arguments)

    three_that_wait()
    few = statements()
    three_that_wait()
    three_that_wait()

    assert statements() == few


# History


def moments(api: Any, activity_id: Any, kind: str) -> list[dict[str, Any]]:
    found = api("viewer").get(f"{ACTIVITIES}{activity_id}/timeline/").json()["results"]
    assert [moment["at"] for moment in found] == sorted(moment["at"] for moment in found)
    return [moment for moment in found if moment["kind"] == kind]


def test_the_history_of_an_agents_work_tells_which_tools_it_used_and_what_came_of_it(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    activity_id, agent = at_work(engine, acme)
    part = agent.used("create_subtask", name="part", agent_role="ba", blocking=False)
    review = agent.used("request_human_review", question="?")

    found = moments(api, activity_id, "tool_call")

    assert [(call["tool"], call["created"], call["stop"]) for call in found] == [
        ("create_subtask", str(part), False), ("request_human_review", str(review), True),
    ]  # fmt: skip
    assert {call["run"] for call in found} == {str(agent.run_id)}


def test_the_history_of_a_question_tells_votes_and_deadlines(api: Any, engine: Engine, acme: Tenant) -> None:
    rules: dict[str, Any] = {"reminders": (Later(60),), "escalation": (Later(300, "boss"),)}
    item = asked(acme, options=("a", "b"), quorum=2, due_seconds=600, **rules)
    approvals.approve(acme.pk, item, actor=voter("Ann"), notes="Fine.", chosen_option="a")

    (vote,) = moments(api, item, "vote")
    deadlines = moments(api, item, "deadline")

    assert (vote["actor"], vote["decision"], vote["chosen_option"], vote["notes"]) == (
        "Ann",
        "approve",
        "a",
        "Fine.",
    )
    assert [(one["deadline"], one["happened_at"]) for one in deadlines] == [
        ("reminder", None), ("escalation", None), ("due", None),
    ]  # fmt: skip
    assert deadlines[1]["human_role"] == "boss"


def test_the_history_in_the_admin_tells_it_too(engine: Engine, acme: Tenant) -> None:
    browser = Client()
    browser.force_login(seeing_all())
    activity_id, agent = at_work(engine, acme)
    item = agent.used("create_approval", type="x", title="Which way?")
    due = asked(acme, due_seconds=600)
    with tenant_scope(acme.pk):
        assert child(acme, activity_id, LinkKind.APPROVAL).pk == item

    page = browser.get(f"/admin/activities/activity/{activity_id}/change/").content.decode()
    shown = browser.get(f"/admin/activities/activity/{due}/change/").content.decode()

    assert "<b>Tool</b> create_approval" in page
    assert f"/admin/activities/activity/{item}/change/" in page
    assert "<b>Deadline</b> due" in shown
