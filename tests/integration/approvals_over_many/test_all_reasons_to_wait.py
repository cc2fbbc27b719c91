"""Work starts when all its reasons to wait are over, its time and every question about it among them, and hears of everything at once."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db.models.functions import Now

from activities import budgets, cancellation, outbox, reassignment, relay, suspension, tasks, wait_reasons
from activities.admission import exchange, limits
from activities.execution import results
from activities.human_tasks import approvals, deadlines
from activities.mailboxes.producer import NewItem, open_mailbox, post
from activities.maintenance import recovery
from activities.maintenance.invariants import check
from activities.models import Activity, ActivityEvent, Deadline, Wake
from agents import configuration
from agents.contracts import AgentRequest, AgentResult, Completed, Output
from agents.exceptions import AgentRateLimited, PermanentAgentError, RetryableAgentError
from agents.models import AgentConfig
from pipelines import versions
from pipelines.submission import NewRun, start_run
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.engine import Engine, at_once, eventually, somebody_waits_for_a_lock
from tests.flows import Flow, step
from tests.integration.agent_runs.accepted_work import RESULT, Agent, accepted
from tests.open_questions import DIRECTION, asked, asking, called, children, heard, links_of, wakes_of
from tests.spending import capped, token_of

pytestmark = pytest.mark.usefixtures("one_at_a_time")

ACTIVITIES, APPROVALS = "/api/v1/activities/", "/api/v1/approvals/"
TOMORROW = timedelta(days=1)
PATIENT = {"strategy": "fixed", "base_seconds": 300.0, "jitter": 0.0}
FAULT = {"error": {"code": "busy", "message": "503", "retryable": True}}


def submitted(client: Any, **fields: Any) -> UUID:
    answer = client.post(ACTIVITIES, {"name": "Write", "agent_role": "qa", **fields})
    assert answer.status_code == 201, answer.json()
    return UUID(answer.json()["id"])


def question(client: Any, *about: UUID) -> UUID:
    body = {**DIRECTION, "activity_ids": [str(one) for one in about]}
    answer = client.post(APPROVALS, body)
    assert answer.status_code == 201, answer.json()
    return UUID(answer.json()["id"])


def decided(client: Any, approval: UUID, decision: str = "approved", notes: str = "Go on") -> Any:
    answer = client.post(f"{APPROVALS}{approval}/decide/", {"decision": decision, "notes": notes})
    assert answer.status_code == 200, answer.json()
    return answer.json()


def reasons(engine: Engine, activity_id: UUID) -> list[list[str]]:
    """Of each run, why it was started."""
    return [[wake["reason"] for wake in wakes] for wakes in heard(engine, activity_id)]


def come_to_rest(engine: Engine) -> None:
    """Whatever is due is offered again, and what may begin is done."""
    outbox.promote()
    recovery.offer_forgotten()
    relay.grant_waiting()
    engine.drain()


def time_passes(engine: Engine, tenant: Tenant) -> None:
    """Every delay is over, and what that allows is done."""
    engine.make_due(tenant)
    come_to_rest(engine)


@pytest.fixture(autouse=True)
def _nothing_is_too_young(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "YOUNG_SECONDS", 0.0)


# Its time.


def test_a_decision_on_work_for_later_is_kept_until_its_time_and_told_in_its_only_run(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    work = submitted(client, not_before=(datetime.now(UTC) + TOMORROW).isoformat())
    approval = question(client, work)

    settled = decided(client, approval)
    come_to_rest(engine)

    assert settled["woken"] == [str(work)]
    assert engine.agent.calls == []
    assert client.get(f"{ACTIVITIES}{work}/").json()["status"] == "created"
    assert client.get(f"{ACTIVITIES}{work}/why/").json()["code"] == "not_before"
    time_passes(engine, acme)
    assert reasons(engine, work) == [["new_task", "review_approved"]]
    assert client.get(f"{ACTIVITIES}{work}/").json()["status"] == "done"
    assert check(quiesced=True) == []


def test_a_month_of_work_in_two_pipelines_under_one_direction_starts_on_its_dates(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    for key in ("posts", "letters"):
        steps = [
            {"id": "write", "agent_role": "qa"},
            {"id": "send", "agent_role": "dev", "depends_on": ["write"]},
        ]
        versions.save(acme.pk, {"key": key, "name": key, "steps": steps}, actor="test")
        start_run(acme.pk, key, NewRun(not_before=datetime.now(UTC) + TOMORROW), actor="test")
    with tenant_scope(acme.pk):
        firsts = list(Activity.objects.filter(step="write").values_list("pk", flat=True))
    approval = question(client, *firsts)

    decided(client, approval)
    come_to_rest(engine)
    before = len(engine.agent.calls)
    time_passes(engine, acme)

    assert (len(firsts), before) == (2, 0)
    assert [reasons(engine, first) for first in firsts] == [[["new_task", "review_approved"]]] * 2
    assert len(engine.agent.calls) == 4


def failing_first(engine: Engine, fault: Exception) -> None:
    """The agent fails once, and does everything afterwards."""

    def behaviour(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) == 1:
            raise fault
        return Completed(Output(content="done"))

    engine.agent.behaviour = behaviour


@pytest.mark.parametrize(
    "fault", [RetryableAgentError("503", code="busy"), AgentRateLimited("429", retry_after=300.0)]
)
def test_a_decision_during_a_retry_delay_is_told_with_the_next_attempt(
    api: Any, engine: Engine, acme: Tenant, fault: Exception
) -> None:
    engine.serve(acme, retry=PATIENT)
    failing_first(engine, fault)
    client = api("operator")
    work = submitted(client)
    engine.drain()
    approval = question(client, work)
    assert client.get(f"{ACTIVITIES}{work}/").json()["status"] == "awaiting_review"

    decided(client, approval)
    come_to_rest(engine)

    assert len(engine.agent.calls) == 1, "the delay is not over"
    assert client.get(f"{ACTIVITIES}{work}/why/").json()["code"] in ("retry_delay", "provider_limit")
    time_passes(engine, acme)
    assert reasons(engine, work) == [["new_task"], ["new_task", "review_approved"]]
    assert engine.status(acme, work) == "done"


def test_what_comes_during_a_run_that_fails_waits_for_the_retry_as_well(
    engine: Engine, patient: Tenant
) -> None:
    engine.serve(patient, retry=PATIENT)
    activity_id, agent = accepted(engine, patient)
    approval = asked(patient, [activity_id])
    approvals.approve(patient.pk, approval, actor="Ann")

    agent.post("fail", FAULT)
    come_to_rest(engine)

    assert len(engine.agent.calls) == 1
    first, second = wakes_of(patient, activity_id)
    assert first.due_at is not None
    assert second.due_at == first.due_at  # or it would be offered, granted and refused again and again
    time_passes(engine, patient)
    assert reasons(engine, activity_id) == [["new_task"], ["new_task", "review_approved"]]


def test_what_waits_for_money_waits_for_it_after_a_decision_too(engine: Engine, acme: Tenant) -> None:
    budget = capped(acme, cap="0.01")
    (activity_id,) = engine.submit(acme)
    engine.drain()
    approval = asked(acme, [activity_id])
    approvals.approve(acme.pk, approval, actor="Ann")
    come_to_rest(engine)

    assert engine.agent.calls == []
    assert wait_reasons.why(acme.pk, activity_id).code == "budget"
    with tenant_scope(acme.pk):
        type(budget).objects.filter(pk=budget.pk).update(cap=10)
    budgets.release_where_room()
    come_to_rest(engine)
    assert reasons(engine, activity_id) == [["new_task", "review_approved"]]
    assert engine.status(acme, activity_id) == "done"


def test_a_message_to_a_session_that_waits_for_money_is_heard_when_there_is_some(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_MAILBOX_WINDOW_MS = 0  # or its end would still be waited for, on a fast machine
    budget = capped(acme, cap="0.01")
    with tenant_scope(acme.pk):
        open_mailbox(acme.pk, "chat", agent_role="qa")
        post(acme.pk, "chat", NewItem(text="one"), actor="test")
    time_passes(engine, acme)
    with tenant_scope(acme.pk):
        post(acme.pk, "chat", NewItem(text="two"), actor="test")
        type(budget).objects.filter(pk=budget.pk).update(cap=10)
    budgets.release_where_room()
    come_to_rest(engine)

    assert [[wake["text"] for wake in call.wakes] for call in engine.agent.calls] == [["one", "two"]]


def test_a_rate_holds_what_a_decision_lets_go(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", rate={"per_second": 0.01, "capacity": 1})
    first, second = engine.submit(acme, count=2)
    approval = asked(acme, [first, second])
    approvals.approve(acme.pk, approval, actor="Ann")

    engine.drain()
    come_to_rest(engine)

    assert len(engine.agent.calls) == 1, "one start each 100 s"
    (waits,) = {first, second} - {call.activity_id for call in engine.agent.calls}
    later = asked(acme, [waits])
    approvals.approve(acme.pk, later, actor="Ann")
    come_to_rest(engine)
    assert len(engine.agent.calls) == 1


@pytest.mark.parametrize("whose", ["role", "tenant"])
def test_a_pause_holds_what_a_decision_lets_go(engine: Engine, acme: Tenant, whose: str) -> None:
    (activity_id,) = engine.submit(acme)
    approval = asked(acme, [activity_id])
    paused(acme, whose, True)

    approvals.approve(acme.pk, approval, actor="Ann")
    come_to_rest(engine)

    assert (engine.agent.calls, wait_reasons.why(acme.pk, activity_id).code) == ([], "paused")
    paused(acme, whose, False)
    come_to_rest(engine)
    assert reasons(engine, activity_id) == [["new_task", "review_approved"]]


def paused(tenant: Tenant, whose: str, is_paused: bool) -> None:
    with tenant_scope(tenant.pk):
        if whose == "tenant":
            type(tenant).objects.filter(pk=tenant.pk).update(paused=is_paused)
        else:
            AgentConfig.objects.filter(agent_id="qa").update(paused=is_paused)
    configuration.forget()
    limits.refresh()


def test_held_work_that_expires_meanwhile_never_starts_though_an_answer_is_first(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    approval = asked(acme, [activity_id])
    expires(acme, activity_id)

    approvals.approve(acme.pk, approval, actor="Ann")
    come_to_rest(engine)
    recovery.expire_stale()

    assert engine.agent.calls == []
    assert engine.get(acme, activity_id).cancel_reason == "expired"


def test_held_work_ends_when_it_expires_and_nobody_is_asked_about_it_any_more(
    engine: Engine, acme: Tenant
) -> None:
    held, other = engine.submit(acme, count=2)
    alone, both = asked(acme, [held]), asked(acme, [held, other])
    expires(acme, held)

    assert recovery.expire_stale() == 1

    assert engine.get(acme, held).cancel_reason == "expired"
    assert (engine.status(acme, alone), engine.status(acme, both)) == ("cancelled", "created")
    assert engine.status(acme, other) == "awaiting_review"
    assert recovery.expire_stale() == 0


ASKS = {
    "report_blocker": {"type": "api_down", "message": "503"},
    "request_human_review": {"question": "Is this the tone?"},
    "create_subtask": {"name": "part", "agent_role": "ba", "blocking": True},
}


@pytest.mark.parametrize("tool", ASKS)
def test_work_that_waits_for_an_answer_ends_with_its_question_when_it_expires(
    engine: Engine, patient: Tenant, tool: str
) -> None:
    work, asked_for = asking(engine, patient, tool, ASKS[tool])
    expires(patient, work)

    assert recovery.expire_stale() == 1

    assert engine.get(patient, work).cancel_reason == "expired"
    assert engine.get(patient, asked_for).cancel_reason == "obsolete"


def test_what_runs_or_waits_for_its_gate_outlives_its_time(engine: Engine, patient: Tenant) -> None:
    gated, first = accepted(engine, patient, requires_approval=True)
    first.post("complete", RESULT)
    running, second = accepted(engine, patient)
    expires(patient, gated)
    expires(patient, running)

    assert recovery.expire_stale() == 0

    assert engine.status(patient, gated) == "awaiting_approval"
    assert second.post("complete", RESULT).status_code == 200
    assert engine.status(patient, running) == "done"


def test_work_that_got_more_time_while_it_was_looked_at_does_not_expire(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    expires(acme, activity_id, in_seconds=60)

    assert not cancellation.expire(acme.pk, activity_id, actor="recovery")

    assert engine.status(acme, activity_id) == "created"


def test_a_revision_waits_for_what_people_are_still_asked_about_the_rejected_work(
    api: Any, engine: Engine, patient: Tenant
) -> None:
    work, agent = accepted(engine, patient, requires_approval=True)
    client = api("operator")
    first, second = question(client, work), question(client, work)
    agent.post("complete", RESULT)

    gate = children(patient, work, "gate")[0].pk
    assert client.post(f"{ACTIVITIES}{gate}/reject/", {"notes": "Shorter"}).status_code == 200
    come_to_rest(engine)

    (revision,) = children(patient, work, "revision_of")
    assert engine.status(patient, revision.pk) == "awaiting_review"
    assert reasons(engine, revision.pk) == []
    decided(client, first)
    come_to_rest(engine)
    assert reasons(engine, revision.pk) == []
    decided(client, second)
    come_to_rest(engine)
    assert reasons(engine, revision.pk) == [["rejection", "review_approved", "review_approved"]]
    assert links_of(patient, first) == {
        work: ("skipped", "A revision has taken its place."),
        revision.pk: ("woken", ""),
    }
    assert check() == []


def test_work_that_a_gate_sends_back_waits_for_what_people_are_still_asked_about_it(
    api: Any, engine: Engine, patient: Tenant
) -> None:
    steps = [
        {"id": "write", "agent_role": "qa"},
        {"id": "look", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"]},
    ]
    versions.save(patient.pk, {"key": "looked-at", "name": "Looked at", "steps": steps}, actor="test")
    run = start_run(patient.pk, "looked-at", NewRun(), actor="test")
    engine.drain()
    with tenant_scope(patient.pk):
        work = Activity.objects.get(pipeline_run_id=run.pk).pk
    client = api("operator")
    open_question = question(client, work)
    Agent(engine.agent.calls[-1]).post("complete", RESULT)
    with tenant_scope(patient.pk):
        gate = Activity.objects.get(pipeline_run_id=run.pk, step="look").pk

    assert client.post(f"{ACTIVITIES}{gate}/reject/", {"notes": "Shorter"}).status_code == 200
    come_to_rest(engine)

    (revision,) = children(patient, work, "revision_of")
    assert reasons(engine, revision.pk) == []
    decided(client, open_question)
    come_to_rest(engine)
    assert reasons(engine, revision.pk) == [["rejection", "review_approved"]]


def test_work_that_is_sent_back_while_the_question_about_it_is_answered_is_not_held_for_ever(
    engine: Engine, patient: Tenant
) -> None:
    flow = Flow(
        engine, patient, step("write"), step("look", "write", human_role="editor", is_approval_gate=True)
    )
    engine.drain()
    work = flow.only(step="write").pk
    open_question = asked(patient, [work])
    Agent(engine.agent.calls[-1]).post("complete", RESULT)
    gate, answered = flow.only(step="look").pk, threading.Event()

    def answer() -> None:
        with tenant_scope(patient.pk):
            approvals.approve(patient.pk, open_question, actor="Bob")
            answered.set()
            eventually(somebody_waits_for_a_lock, seconds=60)

    def send_back() -> None:
        assert answered.wait(60)
        approvals.reject(patient.pk, gate, actor="Ann", notes="Shorter")

    assert at_once(answer, send_back) == [None, None]
    come_to_rest(engine)

    (revision,) = children(patient, work, "revision_of")
    assert reasons(engine, revision.pk) == [["rejection"]]


def expires(tenant: Tenant, activity_id: UUID, *, in_seconds: float = -1.0) -> None:
    with tenant_scope(tenant.pk):
        Activity.objects.filter(pk=activity_id).update(expires_at=Now() + timedelta(seconds=in_seconds))


# Several questions.


def test_work_under_several_approvals_starts_when_all_are_answered_and_hears_all_answers_in_order(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    work = submitted(client)
    first, second, third = (question(client, work) for _ in range(3))
    assert client.get(f"{ACTIVITIES}{work}/why/").json()["holder"].count("Which direction?") == 3

    decided(client, second, "rejected", "Not like this")
    decided(client, first)
    come_to_rest(engine)
    assert client.get(f"{ACTIVITIES}{work}/").json()["status"] == "awaiting_review"
    assert engine.agent.calls == []
    answer = client.post(f"{APPROVALS}{third}/withdraw/", {"reason": "no need"})
    come_to_rest(engine)

    assert answer.json()["woken"] == [str(work)]
    assert reasons(engine, work) == [["new_task", "review_feedback", "review_approved", "review_feedback"]]
    told = [wake.get("outcome") for wake in heard(engine, work)[0]]
    assert told == [None, "rejected", "approved", "withdrawn"]
    assert [links_of(acme, one)[work] for one in (first, second, third)] == [("woken", "")] * 3
    assert engine.status(acme, work) == "done"


def test_one_that_nobody_answers_in_time_is_an_answer_of_several(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    timed = asked(acme, [activity_id], due_seconds=60, on_timeout="reject")
    other = asked(acme, [activity_id])
    with tenant_scope(acme.pk):
        (due,) = Deadline.objects.filter(activity_id=timed)

    deadlines.pass_due(due.at)
    come_to_rest(engine)
    assert (engine.agent.calls, engine.status(acme, other)) == ([], "created")
    approvals.approve(acme.pk, other, actor="Ann")
    come_to_rest(engine)

    assert [wake.get("outcome") for wake in heard(engine, activity_id)[0]] == [None, "expired", "approved"]


@pytest.mark.parametrize("order", ["review first", "approval first"])
def test_an_agents_own_review_and_an_operators_approval_are_both_waited_for(
    engine: Engine, patient: Tenant, order: str
) -> None:
    activity_id, agent = accepted(engine, patient)
    review = called(agent, "request_human_review", {"question": "May I?"})
    approval = asked(patient, [activity_id])
    steps = [review, approval] if order == "review first" else [approval, review]

    approvals.approve(patient.pk, steps[0], actor="Ann")
    come_to_rest(engine)
    assert engine.status(patient, activity_id) == "awaiting_review"
    assert engine.status(patient, steps[1]) == "created", "no answer closes another question"
    why = wait_reasons.why(patient.pk, activity_id)
    approvals.approve(patient.pk, steps[1], actor="Bob")
    come_to_rest(engine)

    assert (why.code, why.holder) == (
        "human",
        "reviewer" if order != "review first" else "Which direction?: reviewer",
    )
    assert [wake["reviewed_by"] for wake in heard(engine, activity_id)[1]] == ["Ann", "Bob"]
    assert len(heard(engine, activity_id)) == 2


def test_an_agents_own_approval_is_not_answered_by_that_of_others(engine: Engine, patient: Tenant) -> None:
    activity_id, agent = accepted(engine, patient)
    approval = asked(patient, [activity_id])
    own = called(agent, "create_approval", DIRECTION)

    approvals.approve(patient.pk, approval, actor="Ann")
    assert (engine.status(patient, activity_id), engine.status(patient, own)) == (
        "awaiting_review",
        "created",
    )
    approvals.approve(patient.pk, own, actor="Bob")
    come_to_rest(engine)

    assert [wake["approval"] for wake in heard(engine, activity_id)[1]] == [str(approval), str(own)]


# Decisions that find the work busy with something else.


def test_a_decision_while_the_work_is_blocked_is_told_with_the_run_after_it(
    api: Any, engine: Engine, patient: Tenant
) -> None:
    client = api("operator")
    activity_id, agent = accepted(engine, patient)
    approval = question(client, activity_id)
    called(agent, "report_blocker", {"type": "api_outage", "message": "It is down"})

    settled = decided(client, approval)
    come_to_rest(engine)
    assert (settled["woken"], settled["skipped"]) == ([str(activity_id)], [])
    assert client.get(f"{ACTIVITIES}{activity_id}/").json()["status"] == "blocked"
    assert len(engine.agent.calls) == 1
    client.post(f"{ACTIVITIES}{activity_id}/resolve/", {"note": "It is up"})
    come_to_rest(engine)

    assert reasons(engine, activity_id) == [["new_task"], ["review_approved", "unblocked"]]


def test_what_is_unblocked_before_the_decision_waits_for_it(engine: Engine, patient: Tenant) -> None:
    activity_id, agent = accepted(engine, patient)
    resolution = called(agent, "report_blocker", {"type": "api_outage", "message": "It is down"})
    approval = asked(patient, [activity_id])
    both = wait_reasons.why(patient.pk, activity_id)

    suspension.resolve_blocker(patient.pk, resolution, actor="Ann", note="It is up")
    come_to_rest(engine)
    assert (engine.status(patient, activity_id), len(engine.agent.calls)) == ("awaiting_review", 1)
    approvals.approve(patient.pk, approval, actor="Ann")
    come_to_rest(engine)

    assert both.code == "human"
    assert both.detail == "Somebody removes the blocker. It continues when all 2 open requests are done."
    assert reasons(engine, activity_id) == [["new_task"], ["unblocked", "review_approved"]]


def test_a_decision_during_a_run_leads_to_exactly_one_run_more(
    api: Any, engine: Engine, patient: Tenant
) -> None:
    client = api("operator")
    activity_id, agent = accepted(engine, patient)
    first, second = question(client, activity_id), question(client, activity_id)
    assert agent.post("heartbeat").json()["stop"] is False, "a run that is under way goes on"

    settled = [decided(client, one) for one in (first, second)]
    agent.post("complete", RESULT)
    come_to_rest(engine)

    assert [one["woken"] for one in settled] == [[str(activity_id)]] * 2
    assert reasons(engine, activity_id) == [["new_task"], ["review_approved", "review_approved"]]
    Agent(engine.agent.calls[-1]).post("complete", RESULT)
    come_to_rest(engine)
    assert (len(engine.agent.calls), engine.status(patient, activity_id)) == (2, "done")
    assert check() == []


def test_what_ends_for_good_before_the_decision_is_listed_as_skipped(
    api: Any, engine: Engine, patient: Tenant
) -> None:
    client = api("operator")
    activity_id, agent = accepted(engine, patient)
    approval = question(client, activity_id)
    agent.post("complete", RESULT)

    settled = decided(client, approval)
    come_to_rest(engine)

    assert (settled["woken"], settled["skipped"]) == ([], [str(activity_id)])
    assert links_of(patient, approval)[activity_id] == ("skipped", "It was done and did not wait for this.")
    assert len(engine.agent.calls) == 1


@pytest.mark.parametrize("again", ["fails", "is lost", "is woken meanwhile"])
def test_no_run_begins_while_a_question_is_open_however_the_one_before_has_ended(
    engine: Engine, patient: Tenant, again: str
) -> None:
    activity_id, agent = accepted(engine, patient)
    approval = asked(patient, [activity_id])
    if again == "fails":
        agent.post("fail", FAULT)
    elif again == "is lost":
        results.record_stalled(token_of(patient, activity_id))
    else:
        earlier = asked(patient, [activity_id])
        approvals.approve(patient.pk, earlier, actor="Ann")
        agent.post("complete", RESULT)

    time_passes(engine, patient)
    assert (engine.status(patient, activity_id), len(engine.agent.calls)) == ("awaiting_review", 1)
    approvals.approve(patient.pk, approval, actor="Ann")
    come_to_rest(engine)

    assert len(engine.agent.calls) == 2
    assert heard(engine, activity_id)[1][-1]["approval"] == str(approval)
    assert check() == []


def test_what_has_failed_hears_of_a_decision_when_it_is_tried_again(engine: Engine, acme: Tenant) -> None:
    failing_first(engine, PermanentAgentError("no", code="no"))
    (activity_id,) = engine.submit(acme)
    engine.drain()
    approval = asked(acme, [activity_id])
    still_open = asked(acme, [activity_id])

    approvals.approve(acme.pk, approval, actor="Ann")
    come_to_rest(engine)
    assert links_of(acme, approval)[activity_id] == (
        "skipped", "It has failed. If it is retried, it starts with the answer.",
    )  # fmt: skip
    cancellation.retry(acme.pk, activity_id, actor="Ann")
    come_to_rest(engine)
    assert (engine.status(acme, activity_id), len(engine.agent.calls)) == ("awaiting_review", 1)
    approvals.approve(acme.pk, still_open, actor="Ann")
    come_to_rest(engine)

    assert reasons(engine, activity_id) == [["new_task"], ["new_task", "review_approved", "review_approved"]]


def test_cancelling_held_work_withdraws_what_only_it_waited_for(engine: Engine, acme: Tenant) -> None:
    first, second = engine.submit(acme, count=2, not_before=datetime.now(UTC) + TOMORROW)
    about_one, about_both = asked(acme, [first]), asked(acme, [first, second])

    cancellation.cancel(acme.pk, first, actor="Ann")
    approvals.approve(acme.pk, about_both, actor="Ann")
    time_passes(engine, acme)

    assert (engine.status(acme, about_one), engine.status(acme, first)) == ("cancelled", "cancelled")
    assert (reasons(engine, first), reasons(engine, second)) == ([], [["new_task", "review_approved"]])


def test_an_heir_hears_what_was_decided_before_and_waits_for_the_rest_and_for_its_time(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + TOMORROW)
    first, second = asked(acme, [activity_id]), asked(acme, [activity_id])
    approvals.approve(acme.pk, first, actor="Ann")

    heir = reassignment.reassign(acme.pk, activity_id, actor="Ann", reason="better", agent_role="dev")
    come_to_rest(engine)
    assert engine.status(acme, heir.pk) == "awaiting_review"
    approvals.approve(acme.pk, second, actor="Ann")
    come_to_rest(engine)
    assert engine.agent.calls == []
    time_passes(engine, acme)

    assert reasons(engine, heir.pk) == [["new_task", "review_approved", "review_approved"]]
    assert engine.status(acme, heir.pk) == "done"
    assert check(quiesced=True) == []


def test_an_heir_that_a_question_holds_is_not_even_granted(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    asked(acme, [activity_id])
    relay.flush()

    with relay.collecting() as told:  # its offer and the withdrawal of that, in one go
        reassignment.reassign(acme.pk, activity_id, actor="Ann", reason="better", agent_role="dev")

    assert exchange(told) == []


def test_work_that_is_offered_again_after_a_withdrawal_is_granted(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    relay.flush()
    with relay.collecting() as told:
        approval = asked(acme, [activity_id])
        approvals.approve(acme.pk, approval, actor="Ann")
        approvals.approve(acme.pk, asked(acme, [activity_id]), actor="Ann")

    assert [grant.activity_id for grant in exchange(told)] == [activity_id]


def test_two_last_answers_at_once_start_the_work_once(engine: Engine, acme: Tenant) -> None:
    ids = engine.submit(acme, count=5)
    questions = [asked(acme, ids) for _ in range(4)]

    outcomes = at_once(*(partial(approvals.approve, acme.pk, one, actor="Ann") for one in questions))
    come_to_rest(engine)

    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert [reasons(engine, one) for one in ids] == [[["new_task", *["review_approved"] * 4]]] * 5


def test_the_prompt_of_a_first_run_after_an_approval_says_one_thing(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approvals.approve(acme.pk, asked(acme, [activity_id]), actor="Ann")
    engine.drain()

    (request,) = engine.agent.calls
    assert "Start from the beginning." in request.prompt
    assert "complete the task" not in request.prompt


# Each guard alone.


def test_answers_to_some_of_many_questions_are_no_wakes_and_use_up_no_budget_of_wakes(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 3
    (activity_id,) = engine.submit(acme)
    questions = [asked(acme, [activity_id]) for _ in range(5)]

    for one in questions:
        approvals.approve(acme.pk, one, actor="Ann")
    come_to_rest(engine)

    assert engine.status(acme, activity_id) == "done"
    assert reasons(engine, activity_id) == [["new_task", *["review_approved"] * 5]]


def test_what_was_granted_is_not_claimed_while_one_of_its_wakes_is_put_off(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    message = engine.take()
    with tenant_scope(acme.pk):
        (due,) = Wake.objects.filter(activity_id=activity_id)
        Wake.objects.create(
            tenant_id=acme.pk, activity_id=activity_id, reason=due.reason, cause="wake", payload={}, fingerprint="later",
            due_at=datetime.now(UTC) + TOMORROW,
        )  # fmt: skip

    tasks.run(**message)

    assert (engine.agent.calls, engine.status(acme, activity_id)) == ([], "created")


def test_what_comes_while_a_wake_is_put_off_is_put_off_with_it(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + TOMORROW)

    with tenant_scope(acme.pk):
        outbox.record(Activity.objects.get(pk=activity_id), "message", payload={"text": "Hello"})

    (first, second) = wakes_of(acme, activity_id)
    assert first.due_at is not None
    assert second.due_at == first.due_at


def test_what_a_decision_lets_go_comes_before_work_that_nobody_had_to_decide_about(
    api: Any, engine: Engine, tenant: Tenant
) -> None:
    engine.serve(tenant, "qa", max_concurrency=1)
    client = api("operator")
    first, held, urgent = submitted(client), submitted(client), submitted(client, priority=1)
    approval, other = question(client, held), question(client, urgent)
    last = submitted(client)

    decided(client, approval)
    decided(client, other)
    come_to_rest(engine)

    assert [call.activity_id for call in engine.agent.calls] == [first, urgent, held, last]
    assert [engine.get(tenant, each).priority for each in (first, urgent, held, last)] == [10, 1, 5, 10]
    with tenant_scope(tenant.pk):
        told = ActivityEvent.objects.get(activity_id=held, verb="reschedule")
    assert told.detail == {"changes": {"priority": [10, 5]}, "reason": "decided"}


def test_steps_behind_a_decision_come_before_others_unless_their_author_says_otherwise(
    engine: Engine, acme: Tenant
) -> None:
    flow = Flow(
        engine,
        acme,
        step("draft", requires_approval=True),
        step("publish", "draft"),
        step("archive", "draft", priority=20),
        step("thank", "publish"),
        priority=15,
    )
    flow.drain()
    with tenant_scope(acme.pk):
        gate = Activity.objects.get(link_kind="gate")
    approvals.approve(acme.pk, gate.pk, actor="Ann")
    flow.drain()

    with tenant_scope(acme.pk):
        found = Activity.objects.filter(pipeline_run_id=flow.id, link_kind=None)
        priorities = dict(found.values_list("step", "priority"))
    assert priorities == {"draft": 15, "publish": 5, "archive": 20, "thank": 15}
