"""Activities in the admin: their list and page, why they wait, what happened, and the actions of operators."""

from __future__ import annotations

import re
from uuid import UUID

from django.contrib.admin.models import LogEntry
from django.db import connections
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from activities.execution import agent_tools
from activities.human_tasks import decisions
from activities.models import Activity
from activities.run_tokens import RunToken
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.models import Tenant
from tests.browsing import list_url, messages_of, page_url, run_action, visible_text
from tests.engine import Engine


def test_the_list_shows_activities_of_all_tenants_and_why_they_wait(
    waiting: Activity, engine: Engine, other_tenant: Tenant, root: Client
) -> None:
    engine.submit(other_tenant, "strategy-writer")

    text = visible_text(root.get(list_url(Activity)))

    assert "work 0 awaiting approval acme" in text
    assert "work 0 created globex smart_toystrategy-writer 10 queued" in text


def test_the_list_can_be_filtered_by_tenant(
    waiting: Activity, engine: Engine, other_tenant: Tenant, root: Client
) -> None:
    engine.submit(other_tenant, "strategy-writer")

    rows = root.get(list_url(Activity), {"tenant": "globex"}).context["cl"].result_list

    assert {activity.tenant_id for activity in rows} == {other_tenant.pk}


def test_the_list_does_not_count_all_rows(waiting: Activity, root: Client) -> None:
    with CaptureQueriesContext(connections[SYSTEM]) as queries:
        root.get(list_url(Activity))

    assert not [
        query["sql"]
        for query in queries
        if "COUNT(" in query["sql"] and "activities_activity" in query["sql"]
    ]


def test_an_activitys_page_shows_what_happened_and_why_it_waits(waiting: Activity, root: Client) -> None:
    with CaptureQueriesContext(connections[SYSTEM]) as queries:
        text = visible_text(root.get(page_url(waiting)))

    reads = [query["sql"] for query in queries if " FROM " in query["sql"]]
    assert not [sql for sql in reads if reads.count(sql) > 3], "the theme asks for each value several times"
    assert "human - It waits for a decision about the result. Asked: reviewer." in text
    assert "request_approval in_progress → awaiting_approval by worker" in text
    assert "Run attempt 1 completed" in text
    assert "bees" in text


def test_text_of_agents_is_escaped(failed: Activity, root: Client) -> None:
    page = root.get(page_url(failed)).content.decode()

    assert "The page <b>is</b> gone." not in page
    assert "&lt;b&gt;is&lt;/b&gt;" in page


def test_an_output_can_be_read(waiting: Activity, root: Client) -> None:
    def page_of_output(*ids: object) -> HttpResponse:
        return root.get(reverse("admin:activities_activity_output", args=ids))

    assert "work 0: done" in visible_text(page_of_output(waiting.pk, waiting.output_ref))
    assert "This output does not exist." in visible_text(page_of_output(waiting.pk, waiting.pk))
    assert page_of_output(UUID(int=1), waiting.pk).status_code == 404


def test_a_button_asks_for_confirmation_before_it_changes_anything(
    waiting: Activity, engine: Engine, tenant: Tenant, root: Client
) -> None:
    question = root.get(f"/admin/activities/activity/{waiting.pk}/approve/")

    assert "Notes for the record" in question.content.decode()
    assert engine.status(tenant, waiting.pk) == "awaiting_approval"


def test_only_buttons_that_apply_to_the_status_are_shown(
    waiting: Activity, failed: Activity, root: Client
) -> None:
    assert buttons(root, waiting) == {"approve", "reject", "cancel"}
    assert buttons(root, failed) == {"retry", "reassign", "cancel"}


def test_an_activity_that_has_ended_has_no_buttons(
    failed: Activity, engine: Engine, tenant: Tenant, root: Client
) -> None:
    run_action(root, Activity, "cancel_selected", failed, confirmed="1", notes="Not needed.")

    assert buttons(root, failed) == set()


def test_an_approval_is_recorded_under_the_operators_name(
    waiting: Activity, engine: Engine, tenant: Tenant, root: Client
) -> None:
    answer = run_action(root, Activity, "approve_selected", waiting, confirmed="1", back="1", notes="fine")

    assert answer["Location"] == page_url(waiting)
    assert messages_of(answer) == ["Approved: work 0."]
    decided = engine.get(tenant, waiting.pk)
    assert (decided.status, decided.decided_by, decided.reviewer_notes) == ("approved", "user:root", "fine")
    with system_scope():
        assert LogEntry.objects.get(object_id=str(waiting.pk)).get_change_message() == "Approved. fine"


def test_rejecting_needs_notes_for_the_agent(
    waiting: Activity, engine: Engine, tenant: Tenant, root: Client
) -> None:
    answer = run_action(root, Activity, "reject_selected", waiting, confirmed="1", notes="")
    assert "This field is required." in answer.content.decode()
    assert engine.status(tenant, waiting.pk) == "awaiting_approval"

    run_action(root, Activity, "reject_selected", waiting, confirmed="1", notes="shorter")

    assert engine.status(tenant, waiting.pk) == "rejected"
    with tenant_scope(tenant.pk):
        assert Activity.objects.get(parent=waiting, link_kind="revision_of").reviewer_notes == "shorter"


def test_failed_work_can_be_reassigned_to_a_person(
    failed: Activity, engine: Engine, tenant: Tenant, root: Client
) -> None:
    question = run_action(root, Activity, "reassign_selected", failed)
    assert "report-writer" in question.content.decode()

    answer = run_action(
        root,
        Activity,
        "reassign_selected",
        failed,
        confirmed="1",
        choice="human:editor",
        notes="By hand this time.",
    )

    assert messages_of(answer) == ["Reassigned: work 0."]
    assert engine.status(tenant, failed.pk) == "reassigned"
    with tenant_scope(tenant.pk):
        successor = Activity.objects.get(parent=failed, link_kind="reassigned_from")
    assert (successor.human_role, successor.metadata["reassign_reason"]) == ("editor", "By hand this time.")


def test_work_cannot_be_reassigned_to_a_role_without_an_agent(
    failed: Activity, engine: Engine, tenant: Tenant, root: Client
) -> None:
    run_action(root, Activity, "reassign_selected", failed, confirmed="1", choice="agent:nobody", notes="x")

    assert engine.status(tenant, failed.pk) == "failed"


def test_a_blocker_can_be_resolved_from_the_blocked_activity(
    engine: Engine, tenant: Tenant, root: Client
) -> None:
    def report_a_blocker(request: AgentRequest) -> AgentResult:
        run = RunToken(
            tenant.pk, request.activity_id, request.run_id, engine.get(tenant, request.activity_id).fence
        )
        agent_tools.perform(run, "report_blocker", {"type": "api_outage", "message": "The tracker is down."})
        return done()

    engine.serve(tenant)
    engine.agent.behaviour = report_a_blocker
    (activity_id,) = engine.submit(tenant)
    engine.drain()
    blocked = engine.get(tenant, activity_id)
    assert buttons(root, blocked) == {"resolve", "reassign", "cancel"}

    run_action(root, Activity, "resolve_selected", blocked, confirmed="1", notes="It is up again.")
    engine.agent.behaviour = lambda request: done()
    engine.drain()

    assert engine.status(tenant, activity_id) == "done"
    assert engine.agent.calls[-1].wakes[0]["blocker_resolution"] == "It is up again."


def test_an_action_handles_each_row_separately_and_says_why_it_skipped_one(
    waiting: Activity, failed: Activity, engine: Engine, tenant: Tenant, root: Client
) -> None:
    decisions.approve(tenant.pk, waiting.pk, actor="user:mia")
    engine.agent.behaviour = lambda request: done()
    (second,) = engine.submit(tenant, "dev", requires_approval=True)
    engine.drain()

    answer = run_action(
        root, Activity, "approve_selected", waiting, failed, engine.get(tenant, second), confirmed="1"
    )

    messages = messages_of(answer)
    assert engine.status(tenant, second) == "approved"
    assert any(message.startswith("Skipped work 0: user:mia approved this at") for message in messages)
    assert any("is failed; nothing waits for a decision there." in message for message in messages)
    assert "Approved: work 0." in messages


def test_one_action_handles_rows_of_several_tenants(
    engine: Engine, tenant: Tenant, other_tenant: Tenant, root: Client
) -> None:
    (ours,), (theirs,) = engine.submit(tenant, "blog-writer"), engine.submit(other_tenant, "blog-writer")

    answer = run_action(
        root,
        Activity,
        "cancel_selected",
        engine.get(tenant, ours),
        engine.get(other_tenant, theirs),
        confirmed="1",
        notes="not needed",
    )

    assert messages_of(answer) == ["Cancelled: work 0, work 0."]
    assert (
        engine.get(tenant, ours).cancel_reason
        == engine.get(other_tenant, theirs).cancel_reason
        == "not needed"
    )


def test_a_failed_activity_can_be_retried(
    failed: Activity, engine: Engine, tenant: Tenant, root: Client
) -> None:
    engine.agent.behaviour = lambda request: done()

    run_action(root, Activity, "retry_selected", failed, confirmed="1")
    engine.drain()

    assert engine.status(tenant, failed.pk) == "done"


def done() -> Completed:
    return Completed(Output(content="done"))


def buttons(root: Client, activity: Activity) -> set[str]:
    page = root.get(page_url(activity)).content.decode()
    paths = re.findall(rf"/admin/activities/activity/{activity.pk}/(\w+)/\"", page)
    return set(paths) - {"history", "change"}
