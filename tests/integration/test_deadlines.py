"""Deadlines: reminders, escalations and default outcomes, each once and in order, at times that the test chooses."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from activities import cancellation
from activities.decision_rules import DecisionRules, Later, Voter
from activities.human_tasks import deadlines, decisions
from activities.models import Activity, Alert, Deadline
from activities.submission import NewActivity, submit
from agents import configuration, credentials
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants import sweeps
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import children, wakes_per_call
from tests.answers import version_of
from tests.engine import Engine, simultaneously
from tests.open_questions import links_of, open_approval

pytestmark = pytest.mark.usefixtures("one_at_a_time", "agent_accepts")

CHAIN = {
    "due_seconds": 120,
    "reminders": [30],
    "escalation": [{"after_seconds": 60, "human_role": "head"}],
    "on_timeout": "approve",
}


#: The same rules as arguments of an operator's approval.
RULES: dict[str, Any] = {
    "due_seconds": 120,
    "reminders": (Later(30),),
    "escalation": (Later(60, "head"),),
    "on_timeout": "approve",
}


def deadlines_of(tenant: Tenant, activity_id: UUID) -> list[Deadline]:
    with tenant_scope(tenant.pk):
        return list(Deadline.objects.filter(activity_id=activity_id).order_by("at", "pk"))


#: On a loaded machine, the clock of a process may differ from that of PostgreSQL by so much (`tenants.clock`).
CLOCK_DIFFERENCE = timedelta(seconds=0.75)


def created_at(tenant: Tenant, activity_id: UUID) -> datetime:
    """When the activity was created at the latest by the clock of this process, from which its deadlines are computed."""
    with tenant_scope(tenant.pk):
        at: datetime = Activity.objects.get(pk=activity_id).created_at
    return at + CLOCK_DIFFERENCE


def alerts(tenant: Tenant) -> list[tuple[str, Any]]:
    """Kind and notified role of all alerts, in order."""
    with tenant_scope(tenant.pk):
        return [(alert.kind, alert.facts["human_role"]) for alert in Alert.objects.order_by("pk")]


def add_task(tenant: Tenant, **rules: Any) -> UUID:
    with tenant_scope(tenant.pk):
        task = NewActivity(
            name="Read it", human_role="editor", decision_rules=DecisionRules(**rules).as_json()
        )
        return submit([task], actor="test")[0].id


# Order and times


def test_reminder_escalation_and_default_outcome_happen_once_at_their_times_and_wake_the_agent(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    approval = open_approval(acme, [activity_id], human_role="editor", **RULES)
    start = created_at(acme, approval)
    kinds_raised = []

    for seconds in (28, 30, 58, 60, 118, 120, 500):
        for _ in range(2):
            deadlines.pass_due(start + timedelta(seconds=seconds))
        kinds_raised.append([kind for kind, _ in alerts(acme)])
    engine.drain()

    assert kinds_raised == [
        [], ["reminder"], ["reminder"], ["reminder", "escalation"], ["reminder", "escalation"],
        ["reminder", "escalation", "expired"], ["reminder", "escalation", "expired"],
    ]  # fmt: skip
    assert alerts(acme) == [("reminder", "editor"), ("escalation", "head"), ("expired", "head")]
    assert len(wakes_per_call(engine, activity_id)) == 1
    wake = engine.agent.calls[-1].wakes[-1]
    assert (wake["reason"], wake["outcome"], wake["reviewed_by"]) == (
        "review_approved",
        "expired",
        "deadline",
    )
    assert links_of(acme, approval)[activity_id] == ("woken", "")


def test_nothing_is_decided_for_a_suspended_tenant_until_it_is_active_again(
    engine: Engine, acme: Tenant, other_tenant: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    approval = open_approval(acme, [activity_id], human_role="editor", **RULES)
    others = open_approval(other_tenant, [], human_role="editor", **RULES)
    after_all = created_at(other_tenant, others) + timedelta(seconds=500)
    with tenant_scope(acme.pk):
        Tenant.objects.filter(pk=acme.pk).update(is_active=False)

    passed = deadlines.pass_due(after_all)

    assert passed == 3
    assert alerts(acme) == []
    assert engine.status(acme, approval) == "created"
    assert engine.status(other_tenant, others) == "approved"
    with tenant_scope(acme.pk):
        Tenant.objects.filter(pk=acme.pk).update(is_active=True)
    deadlines.pass_due(after_all)
    assert [kind for kind, _ in alerts(acme)] == ["reminder", "escalation", "expired"]
    assert engine.status(acme, approval) == "approved"


def test_a_deadline_does_not_pass_if_its_tenant_is_suspended_after_it_was_listed(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    approval = open_approval(acme, [activity_id], human_role="editor", **RULES)
    with tenant_scope(acme.pk):
        listed = list(Deadline.objects.filter(activity_id=approval).values_list("pk", "at"))
        Tenant.objects.filter(pk=acme.pk).update(is_active=False)

    passed = [deadlines._pass(acme.pk, approval, pk, at) for pk, at in listed]

    assert passed == [False] * 3
    assert alerts(acme) == []
    assert engine.status(acme, approval) == "created"


def test_concurrent_processes_after_an_outage_process_every_deadline_once_and_in_order(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "TURN_SECONDS", math.inf)
    ids = [
        (activity_id, open_approval(acme, [activity_id], **RULES))
        for activity_id in engine.submit(acme, count=5)
    ]
    late = created_at(acme, ids[-1][1]) + timedelta(days=1)

    counts = simultaneously(*[partial(deadlines.pass_due, late)] * 4)
    deadlines.pass_due(late)  # those that the four skipped because of locks
    engine.drain()

    assert all(isinstance(count, int) for count in counts), counts
    with tenant_scope(acme.pk):
        raised = list(Alert.objects.order_by("pk").values_list("activity_id", "kind"))
    for activity_id, approval in ids:
        assert [kind for about, kind in raised if about == approval] == ["reminder", "escalation", "expired"]
        assert [deadline.happened_at for deadline in deadlines_of(acme, approval)] == [late] * 3
        assert engine.status(acme, approval) == "approved"
        assert len(wakes_per_call(engine, activity_id)) == 1
    assert len(raised) == 15


def test_an_escalation_moves_the_approval_to_the_next_role_and_makes_it_urgent(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    approval = open_approval(acme, human_role="editor", **RULES)

    deadlines.pass_due(created_at(acme, approval) + timedelta(seconds=60))

    (item,) = api().get("/api/v1/inbox/?human_role=head").json()["results"]
    assert (item["id"], item["priority"], item["status"]) == (str(approval), 1, "created")
    assert api().get("/api/v1/inbox/?human_role=editor").json()["results"] == []


def test_an_item_that_its_deadlines_make_urgent_has_a_new_version_and_an_event(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    task = add_task(acme, due_seconds=20, escalation=(Later(10, "head"),))
    address = f"/api/v1/activities/{task}/"
    client, tags, versions = api(), [""], []

    for seconds in (0, 10, 20):
        deadlines.pass_due(created_at(acme, task) + timedelta(seconds=seconds))
        answer = client.get(address, HTTP_IF_NONE_MATCH=tags[-1])
        tags.append(answer.headers["ETag"])
        versions.append(version_of(answer))

    assert versions == ["1", "2", "2"]  # at its due time it is urgent already
    assert client.post(f"{address}start/", HTTP_IF_MATCH=tags[1]).status_code == 412
    (event,) = [
        entry
        for entry in client.get(f"{address}timeline/").json()["results"]
        if entry.get("verb") == "reschedule"
    ]
    assert (event["actor"], event["detail"]) == (
        "deadline",
        {"reason": "escalated", "changes": {"priority": [10, 1], "human_role": ["editor", "head"]}},
    )


def test_a_claimed_item_that_is_overdue_has_a_new_version(api: Any, engine: Engine, acme: Tenant) -> None:
    task = add_task(acme, due_seconds=20)
    client = api()
    claimed = client.post(f"/api/v1/activities/{task}/start/").json()

    deadlines.pass_due(created_at(acme, task) + timedelta(seconds=20))

    overdue = client.get(f"/api/v1/activities/{task}/").json()
    assert (overdue["priority"], overdue["status"]) == (1, "in_progress")
    assert overdue["version"] == claimed["version"] + 1


def test_a_chain_escalates_to_one_role_after_the_other(engine: Engine, acme: Tenant) -> None:
    approval = open_approval(acme, escalation=(Later(10, "lead"), Later(20, "head"), Later(30, "owner")))

    roles = []
    for seconds in (10, 20, 30):
        deadlines.pass_due(created_at(acme, approval) + timedelta(seconds=seconds))
        roles.append(engine.get(acme, approval).human_role)

    assert roles == ["lead", "head", "owner"]


def test_deadlines_of_decided_and_cancelled_approvals_have_no_effect(engine: Engine, acme: Tenant) -> None:
    answered, withdrawn = (
        open_approval(acme, due_seconds=60, on_timeout="reject", reminders=(Later(30),)) for _ in "12"
    )
    decisions.approve(acme.pk, answered, actor="Ann")
    cancellation.cancel(acme.pk, withdrawn, actor="Ann")
    late = created_at(acme, withdrawn) + timedelta(seconds=60)

    deadlines.pass_due(late)

    assert alerts(acme) == []
    assert (engine.status(acme, answered), engine.status(acme, withdrawn)) == ("approved", "cancelled")
    assert all(
        deadline.happened_at == late
        for deadline in deadlines_of(acme, answered) + deadlines_of(acme, withdrawn)
    )


def test_a_claimed_approval_still_has_reminders(engine: Engine, acme: Tenant) -> None:
    from activities.human_tasks import human_work

    approval = open_approval(acme, reminders=(Later(30, "head"),))
    human_work.take_up(acme.pk, approval, actor="Ann")

    deadlines.pass_due(created_at(acme, approval) + timedelta(seconds=30))

    assert alerts(acme) == [("reminder", "head")]


# The due time


@pytest.mark.parametrize(
    ("rules", "role"),
    [({}, "operator"), ({"escalation": (Later(10, "lead"), Later(20, "head"))}, "head")],
)
def test_at_the_due_time_the_last_role_of_the_chain_or_an_operator_is_responsible(
    engine: Engine, acme: Tenant, rules: Any, role: str
) -> None:
    approval = open_approval(acme, due_seconds=60, on_timeout="escalate", **rules)

    deadlines.pass_due(created_at(acme, approval) + timedelta(seconds=60))

    item = engine.get(acme, approval)
    assert (item.status, item.human_role, item.priority) == ("created", role, 1)
    assert alerts(acme)[-1] == ("escalation", role)


def test_without_a_default_outcome_the_approval_stays_open_urgent_and_overdue(
    engine: Engine, acme: Tenant
) -> None:
    approval = open_approval(acme, due_seconds=60)

    deadlines.pass_due(created_at(acme, approval) + timedelta(seconds=60))

    item = engine.get(acme, approval)
    assert (item.status, item.human_role, item.priority) == ("created", "reviewer", 1)
    assert alerts(acme) == [("overdue", "reviewer")]


def test_a_stored_question_with_options_is_not_approved_without_one(engine: Engine, acme: Tenant) -> None:
    approval = open_approval(acme, options=("a", "b"), due_seconds=60, on_timeout="approve")

    deadlines.pass_due(created_at(acme, approval) + timedelta(seconds=60))

    item = engine.get(acme, approval)
    assert (item.status, item.human_role, item.priority) == ("created", "reviewer", 1)
    assert alerts(acme) == [("overdue", "reviewer")]
    decisions.decide(acme.pk, approval, "approve", by=Voter("user:ann"), chosen_option="b")
    assert engine.get(acme, approval).chosen_option == "b"


def test_a_question_with_options_is_rejected_by_default_without_one(engine: Engine, acme: Tenant) -> None:
    approval = open_approval(acme, options=("a", "b"), due_seconds=60, on_timeout="reject")

    deadlines.pass_due(created_at(acme, approval) + timedelta(seconds=60))

    assert (engine.status(acme, approval), engine.get(acme, approval).chosen_option) == ("rejected", None)


def test_a_default_outcome_does_not_complete_a_persons_task(engine: Engine, acme: Tenant) -> None:
    task = add_task(acme, due_seconds=60, on_timeout="approve")

    deadlines.pass_due(created_at(acme, task) + timedelta(seconds=60))

    assert engine.status(acme, task) == "created"
    assert alerts(acme) == [("overdue", "editor")]


@pytest.mark.parametrize("outcome", ["approve", "reject"])
def test_the_default_outcome_of_a_gate_applies_to_its_activity(
    engine: Engine, acme: Tenant, outcome: str
) -> None:
    engine.agent.behaviour = type(engine.agent)().behaviour
    rules = DecisionRules(due_seconds=60, on_timeout=outcome).as_json()
    (activity_id,) = engine.submit(acme, requires_approval=True, decision_rules=rules)
    engine.drain()
    (gate,) = children(acme, activity_id, "gate")

    deadlines.pass_due(created_at(acme, gate.pk) + timedelta(seconds=60))

    decided = engine.get(acme, activity_id)
    assert (decided.status, decided.decided_by) == (
        {"approve": "approved", "reject": "rejected"}[outcome],
        "deadline",
    )
    revisions = children(acme, activity_id, "revision_of")
    assert [revision.reviewer_notes for revision in revisions] == (
        [deadlines.NOBODY] if outcome == "reject" else []
    )


# Pipelines


def test_a_human_step_has_the_deadlines_of_its_pipeline(engine: Engine, acme: Tenant) -> None:
    step = {"id": "sign", "human_role": "editor", "is_approval_gate": True, **CHAIN}
    versions.save(acme.pk, {"key": "signed", "name": "Signed", "steps": [step]}, actor="test")
    run = start_run(acme.pk, "signed", NewRun(), actor="test")
    with tenant_scope(acme.pk):
        gate = Activity.objects.get(pipeline_run_id=run.pk)

    deadlines.pass_due(created_at(acme, gate.pk) + timedelta(seconds=120))

    assert gate.due_at is not None
    assert alerts(acme) == [("reminder", "editor"), ("escalation", "head"), ("expired", "head")]
    with tenant_scope(acme.pk):
        run.refresh_from_db()
    assert (engine.status(acme, gate.pk), run.status) == ("approved", "completed")


def test_a_leader_without_the_encryption_keys_continues_with_an_agent_that_has_credentials(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    """Any beat may lead, and has no keys."""
    context = credentials.config_context(acme.pk, "qa")
    engine.serve(acme, "qa", auth_sealed=credentials.seal({"type": "bearer", "token": "t"}, context=context))
    steps = [
        {"id": "sign", "human_role": "editor", "is_approval_gate": True, **CHAIN},
        {"id": "publish", "agent_role": "qa", "depends_on": ["sign"]},
    ]
    versions.save(acme.pk, {"key": "signed", "name": "Signed", "steps": steps}, actor="test")
    run = start_run(acme.pk, "signed", NewRun(), actor="test")
    with tenant_scope(acme.pk):
        gate = Activity.objects.get(pipeline_run_id=run.pk)
    settings.FIELD_ENCRYPTION_KEYS = []
    configuration.forget()

    deadlines.pass_due(created_at(acme, gate.pk) + timedelta(seconds=120))

    assert engine.status(acme, gate.pk) == "approved"
    with tenant_scope(acme.pk):
        assert Activity.objects.get(pipeline_run_id=run.pk, step="publish").status == "created"


def test_the_gate_of_an_agents_step_has_the_rules_of_the_step_from_its_creation(
    engine: Engine, acme: Tenant
) -> None:
    engine.agent.behaviour = type(engine.agent)().behaviour
    step = {"id": "draft", "agent_role": "qa", "requires_approval": True, **CHAIN, "quorum": 2, "voters": 3}
    versions.save(acme.pk, {"key": "drafted", "name": "Drafted", "steps": [step]}, actor="test")
    run = start_run(acme.pk, "drafted", NewRun(), actor="test")
    engine.drain()
    with tenant_scope(acme.pk):
        work = Activity.objects.get(pipeline_run_id=run.pk, link_kind=None)
    (gate,) = children(acme, work.pk, "gate")

    rules = DecisionRules.read(gate.decision_rules)

    assert work.due_at is None
    assert (rules.quorum, rules.voters, rules.on_timeout, rules.self_approval) == (2, 3, "approve", False)
    *chain, due = deadlines_of(acme, gate.pk)
    assert [each.at - gate.created_at for each in chain] == [timedelta(seconds=30), timedelta(seconds=60)]
    assert due.at == gate.due_at
    assert abs(due.at - gate.created_at - timedelta(seconds=120)) < timedelta(seconds=20)


# Errors and load


def test_an_invalid_deadline_stops_only_those_of_its_own_approval(
    engine: Engine, acme: Tenant, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 1)
    broken, sound = (
        open_approval(acme, due_seconds=60, on_timeout="approve", reminders=(Later(30),)) for _ in "12"
    )
    with tenant_scope(acme.pk):
        Deadline.objects.filter(activity_id=broken, kind="reminder").update(kind="nonsense")

    deadlines.pass_due(created_at(acme, sound) + timedelta(seconds=60))

    assert engine.status(acme, sound) == "approved"
    assert engine.status(acme, broken) == "created", "the default outcome must not overtake the reminder"
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "A deadline cannot be processed"
    ]


def test_a_turn_ends_after_its_time_and_the_next_continues(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "TURN_SECONDS", -1.0)
    approval = open_approval(
        acme, due_seconds=60, on_timeout="approve", reminders=(Later(30),), escalation=(Later(40, "head"),)
    )
    late = created_at(acme, approval) + timedelta(seconds=60)

    kinds = []
    for _ in range(4):
        deadlines.pass_due(late)
        kinds.append(len(alerts(acme)))

    assert kinds == [1, 2, 3, 3]


def test_many_due_deadlines_are_processed_in_pages(
    engine: Engine, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 3)
    tasks = [add_task(acme, due_seconds=60) for _ in range(10)]

    assert deadlines.pass_due(created_at(acme, tasks[-1]) + timedelta(seconds=60)) == 10
    assert len(alerts(acme)) == 10
