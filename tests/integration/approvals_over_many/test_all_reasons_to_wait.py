"""Work starts when every reason to wait is over: delays, budgets, pauses and open questions. Its run receives all wakes at once."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db.models.functions import Now

from activities import (
    activity_tree,
    budgets,
    cancellation,
    outbox,
    reassignment,
    relay,
    suspension,
    tasks,
    wait_reasons,
)
from activities.admission import exchange, limits
from activities.execution import results
from activities.human_tasks import deadlines, decisions
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
from tenants import clock
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.accepted_work import (
    RESULT,
    AgentClient,
    accept_and_create,
    accept_work,
    children,
    wakes_of,
    wakes_per_call,
)
from tests.engine import Engine, eventually, simultaneously, somebody_waits_for_a_lock
from tests.flows import Flow, step
from tests.open_questions import DIRECTION, links_of, open_approval
from tests.spending import make_budget, run_token_of

pytestmark = pytest.mark.usefixtures("one_at_a_time")

ACTIVITIES, APPROVALS = "/api/v1/activities/", "/api/v1/approvals/"
TOMORROW = timedelta(days=1)
RETRY_LATER = {"strategy": "fixed", "base_seconds": 300.0, "jitter": 0.0}
FAULT = {"error": {"code": "busy", "message": "503", "retryable": True}}


def submit(client: Any, **fields: Any) -> UUID:
    answer = client.post(ACTIVITIES, {"name": "Write", "agent_role": "qa", **fields})
    assert answer.status_code == 201, answer.json()
    return UUID(answer.json()["id"])


def request_approval(client: Any, *about: UUID) -> UUID:
    body = {**DIRECTION, "activity_ids": [str(one) for one in about]}
    answer = client.post(APPROVALS, body)
    assert answer.status_code == 201, answer.json()
    return UUID(answer.json()["id"])


def decide(client: Any, approval: UUID, decision: str = "approved", notes: str = "Go on") -> Any:
    answer = client.post(f"{APPROVALS}{approval}/decide/", {"decision": decision, "notes": notes})
    assert answer.status_code == 200, answer.json()
    return answer.json()


def reasons(engine: Engine, activity_id: UUID) -> list[list[str]]:
    """The wake reasons of each run."""
    return [[wake["reason"] for wake in wakes] for wakes in wakes_per_call(engine, activity_id)]


def settle(engine: Engine) -> None:
    """Offer again whatever is due, and run whatever may start."""
    outbox.promote()
    recovery.offer_forgotten()
    relay.grant_waiting()
    engine.drain()


def pass_delays(engine: Engine, tenant: Tenant) -> None:
    """End every delay, and run whatever may start."""
    engine.make_due(tenant)
    settle(engine)


@pytest.fixture(autouse=True)
def _no_minimum_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "YOUNG_SECONDS", 0.0)


# Delays, budgets, rates and pauses.


def test_a_decision_on_work_for_later_reaches_its_only_run_at_its_time(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    work = submit(client, not_before=(datetime.now(UTC) + TOMORROW).isoformat())
    approval = request_approval(client, work)

    response = decide(client, approval)
    settle(engine)

    assert response["woken"] == [str(work)]
    assert engine.agent.calls == []
    assert client.get(f"{ACTIVITIES}{work}/").json()["status"] == "created"
    assert client.get(f"{ACTIVITIES}{work}/why/").json()["code"] == "not_before"
    pass_delays(engine, acme)
    assert reasons(engine, work) == [["new_task", "review_approved"]]
    assert client.get(f"{ACTIVITIES}{work}/").json()["status"] == "done"
    assert check(quiesced=True) == []


def test_a_decision_on_delayed_work_of_two_pipelines_does_not_start_it_early(
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
    approval = request_approval(client, *firsts)

    decide(client, approval)
    settle(engine)
    before = len(engine.agent.calls)
    pass_delays(engine, acme)

    assert (len(firsts), before) == (2, 0)
    assert [reasons(engine, first) for first in firsts] == [[["new_task", "review_approved"]]] * 2
    assert len(engine.agent.calls) == 4


def fail_first(engine: Engine, fault: Exception) -> None:
    """Let the agent fail its first call and complete every later one."""

    def behaviour(request: AgentRequest) -> AgentResult:
        if len(engine.agent.calls) == 1:
            raise fault
        return Completed(Output(content="done"))

    engine.agent.behaviour = behaviour


@pytest.mark.parametrize(
    "fault", [RetryableAgentError("503", code="busy"), AgentRateLimited("429", retry_after=300.0)]
)
def test_a_decision_during_a_retry_delay_reaches_the_next_attempt(
    api: Any, engine: Engine, acme: Tenant, fault: Exception
) -> None:
    engine.serve(acme, retry=RETRY_LATER)
    fail_first(engine, fault)
    client = api("operator")
    work = submit(client)
    engine.drain()
    approval = request_approval(client, work)
    assert client.get(f"{ACTIVITIES}{work}/").json()["status"] == "awaiting_review"

    decide(client, approval)
    settle(engine)

    assert len(engine.agent.calls) == 1, "the delay is not over"
    assert client.get(f"{ACTIVITIES}{work}/why/").json()["code"] in ("retry_delay", "provider_limit")
    pass_delays(engine, acme)
    assert reasons(engine, work) == [["new_task"], ["new_task", "review_approved"]]
    assert engine.status(acme, work) == "done"


def test_a_wake_during_a_failing_run_waits_for_the_retry(engine: Engine, accepting: Tenant) -> None:
    engine.serve(accepting, retry=RETRY_LATER)
    activity_id, agent = accept_work(engine, accepting)
    approval = open_approval(accepting, [activity_id])
    decisions.approve(accepting.pk, approval, actor="Ann")

    agent.post("fail", FAULT)
    settle(engine)

    assert len(engine.agent.calls) == 1
    first, second = wakes_of(accepting, activity_id)
    assert first.due_at is not None
    # Otherwise it would be offered, granted and refused repeatedly.
    assert second.due_at == first.due_at
    pass_delays(engine, accepting)
    assert reasons(engine, activity_id) == [["new_task"], ["new_task", "review_approved"]]


def test_work_that_waits_for_its_budget_still_does_after_a_decision(engine: Engine, acme: Tenant) -> None:
    budget = make_budget(acme, cap="0.01")
    (activity_id,) = engine.submit(acme)
    engine.drain()
    approval = open_approval(acme, [activity_id])
    decisions.approve(acme.pk, approval, actor="Ann")
    settle(engine)

    assert engine.agent.calls == []
    assert wait_reasons.why(acme.pk, activity_id).code == "budget"
    with tenant_scope(acme.pk):
        type(budget).objects.filter(pk=budget.pk).update(cap=10)
    budgets.release_where_room()
    settle(engine)
    assert reasons(engine, activity_id) == [["new_task", "review_approved"]]
    assert engine.status(acme, activity_id) == "done"


def test_messages_to_a_session_that_waits_for_its_budget_arrive_together_later(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    # A fast machine would still wait for the end of the window.
    settings.ORCHESTRATOR_MAILBOX_WINDOW_MS = 0
    budget = make_budget(acme, cap="0.01")
    with tenant_scope(acme.pk):
        open_mailbox(acme.pk, "chat", agent_role="qa")
        post(acme.pk, "chat", NewItem(text="one"), actor="test")
    pass_delays(engine, acme)
    with tenant_scope(acme.pk):
        post(acme.pk, "chat", NewItem(text="two"), actor="test")
        type(budget).objects.filter(pk=budget.pk).update(cap=10)
    budgets.release_where_room()
    settle(engine)

    assert [[wake["text"] for wake in call.wakes] for call in engine.agent.calls] == [["one", "two"]]


@pytest.mark.parametrize(
    ("earlier", "run_now"),
    [([], False), (["one"], False), (["one"], True)],
    ids=["of new work", "of work that has run", "until it is to run now"],
)
def test_messages_wait_for_the_date_that_people_set(
    api: Any, engine: Engine, acme: Tenant, settings: Any, earlier: list[str], run_now: bool
) -> None:
    settings.ORCHESTRATOR_MAILBOX_WINDOW_MS = 0
    now = clock.now()
    date, before = now + 2 * TOMORROW, now + TOMORROW
    with tenant_scope(acme.pk):
        open_mailbox(acme.pk, "chat", agent_role="qa")
        for text in earlier:
            post(acme.pk, "chat", NewItem(text=text), actor="test")
        post(acme.pk, "chat", NewItem(text="later", run_after=before), actor="test")
        activity_id = Activity.objects.get().pk
    settle(engine)
    path, client = f"{ACTIVITIES}{activity_id}/", api("operator", acme)

    def due() -> set[datetime | None]:
        return {wake.due_at for wake in wakes_of(acme, activity_id) if wake.state == "pending"}

    client.patch(path, {"not_before": date.isoformat()})
    with tenant_scope(acme.pk):
        post(acme.pk, "chat", NewItem(text="two"), actor="test")
    settle(engine)
    assert (len(engine.agent.calls), due()) == (len(earlier), {date})
    assert wait_reasons.why(acme.pk, activity_id).code == "not_before"

    if run_now:
        client.post(f"{path}run-now/", {"reason": "The client waits."})
    else:
        client.patch(path, {"not_before": None})
    assert due() == {None, before}
    settle(engine)
    assert [[wake["text"] for wake in call.wakes] for call in engine.agent.calls] == [
        [text] for text in [*earlier, "two"]
    ]


def test_a_rate_still_applies_after_a_decision(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme, "qa", rate={"per_second": 0.01, "capacity": 1})
    first, second = engine.submit(acme, count=2)
    approval = open_approval(acme, [first, second])
    decisions.approve(acme.pk, approval, actor="Ann")

    engine.drain()
    settle(engine)

    assert len(engine.agent.calls) == 1, "one start each 100 s"
    (waiting,) = {first, second} - {call.activity_id for call in engine.agent.calls}
    later = open_approval(acme, [waiting])
    decisions.approve(acme.pk, later, actor="Ann")
    settle(engine)
    assert len(engine.agent.calls) == 1


@pytest.mark.parametrize("whose", ["role", "tenant"])
def test_a_pause_still_applies_after_a_decision(engine: Engine, acme: Tenant, whose: str) -> None:
    (activity_id,) = engine.submit(acme)
    approval = open_approval(acme, [activity_id])
    set_paused(acme, whose, True)

    decisions.approve(acme.pk, approval, actor="Ann")
    settle(engine)

    assert (engine.agent.calls, wait_reasons.why(acme.pk, activity_id).code) == ([], "paused")
    set_paused(acme, whose, False)
    settle(engine)
    assert reasons(engine, activity_id) == [["new_task", "review_approved"]]


def set_paused(tenant: Tenant, whose: str, is_paused: bool) -> None:
    with tenant_scope(tenant.pk):
        if whose == "tenant":
            type(tenant).objects.filter(pk=tenant.pk).update(paused=is_paused)
        else:
            AgentConfig.objects.filter(agent_id="qa").update(paused=is_paused)
    configuration.forget()
    limits.refresh()


def test_work_that_expired_before_the_answer_never_starts(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    approval = open_approval(acme, [activity_id])
    set_expiry(acme, activity_id)

    decisions.approve(acme.pk, approval, actor="Ann")
    settle(engine)
    recovery.expire_stale()

    assert engine.agent.calls == []
    assert engine.get(acme, activity_id).cancel_reason == "expired"


def test_held_work_that_expires_closes_the_questions_about_it_alone(engine: Engine, acme: Tenant) -> None:
    held, other = engine.submit(acme, count=2)
    alone, shared = open_approval(acme, [held]), open_approval(acme, [held, other])
    set_expiry(acme, held)

    assert recovery.expire_stale() == 1

    assert engine.get(acme, held).cancel_reason == "expired"
    assert (engine.status(acme, alone), engine.status(acme, shared)) == ("cancelled", "created")
    assert engine.status(acme, other) == "awaiting_review"
    assert recovery.expire_stale() == 0


ARGUMENTS_OF_TOOLS = {
    "report_blocker": {"type": "api_down", "message": "503"},
    "request_human_review": {"question": "Is this the tone?"},
    "create_subtask": {"name": "part", "agent_role": "ba", "blocking": True},
}


@pytest.mark.parametrize("tool", ARGUMENTS_OF_TOOLS)
def test_expired_work_ends_together_with_its_own_question(
    engine: Engine, accepting: Tenant, tool: str
) -> None:
    work, question = accept_and_create(engine, accepting, tool, ARGUMENTS_OF_TOOLS[tool])
    set_expiry(accepting, work)

    assert recovery.expire_stale() == 1

    assert engine.get(accepting, work).cancel_reason == "expired"
    assert engine.get(accepting, question).cancel_reason == "obsolete"


def test_running_work_and_work_at_its_gate_do_not_expire(engine: Engine, accepting: Tenant) -> None:
    gated, first = accept_work(engine, accepting, requires_approval=True)
    first.post("complete", RESULT)
    running, second = accept_work(engine, accepting)
    set_expiry(accepting, gated)
    set_expiry(accepting, running)

    assert recovery.expire_stale() == 0

    assert engine.status(accepting, gated) == "awaiting_approval"
    assert second.post("complete", RESULT).status_code == 200
    assert engine.status(accepting, running) == "done"


def test_work_whose_expiry_was_extended_does_not_expire(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    set_expiry(acme, activity_id, in_seconds=60)

    assert not cancellation.expire(acme.pk, activity_id, actor="recovery")

    assert engine.status(acme, activity_id) == "created"


def test_a_revision_waits_for_open_questions_about_the_rejected_work(
    api: Any, engine: Engine, accepting: Tenant
) -> None:
    work, agent = accept_work(engine, accepting, requires_approval=True)
    client = api("operator")
    first, second = request_approval(client, work), request_approval(client, work)
    agent.post("complete", RESULT)

    gate = children(accepting, work, "gate")[0].pk
    assert client.post(f"{ACTIVITIES}{gate}/reject/", {"notes": "Shorter"}).status_code == 200
    settle(engine)

    (revision,) = children(accepting, work, "revision_of")
    assert engine.status(accepting, revision.pk) == "awaiting_review"
    assert reasons(engine, revision.pk) == []
    decide(client, first)
    settle(engine)
    assert reasons(engine, revision.pk) == []
    decide(client, second)
    settle(engine)
    assert reasons(engine, revision.pk) == [["rejection", "review_approved", "review_approved"]]
    assert links_of(accepting, first) == {
        work: ("skipped", "A revision has taken its place."),
        revision.pk: ("woken", ""),
    }
    assert check() == []


def test_a_revision_after_a_separate_gate_waits_for_open_questions(
    api: Any, engine: Engine, accepting: Tenant
) -> None:
    steps = [
        {"id": "write", "agent_role": "qa"},
        {"id": "look", "human_role": "editor", "is_approval_gate": True, "depends_on": ["write"]},
    ]
    versions.save(accepting.pk, {"key": "looked-at", "name": "Looked at", "steps": steps}, actor="test")
    run = start_run(accepting.pk, "looked-at", NewRun(), actor="test")
    engine.drain()
    with tenant_scope(accepting.pk):
        work = Activity.objects.get(pipeline_run_id=run.pk).pk
    client = api("operator")
    open_question = request_approval(client, work)
    AgentClient(engine.agent.calls[-1]).post("complete", RESULT)
    with tenant_scope(accepting.pk):
        gate = Activity.objects.get(pipeline_run_id=run.pk, step="look").pk

    assert client.post(f"{ACTIVITIES}{gate}/reject/", {"notes": "Shorter"}).status_code == 200
    settle(engine)

    (revision,) = children(accepting, work, "revision_of")
    assert reasons(engine, revision.pk) == []
    decide(client, open_question)
    settle(engine)
    assert reasons(engine, revision.pk) == [["rejection", "review_approved"]]


def test_a_rejection_during_the_last_answer_leaves_no_revision_held(
    engine: Engine, accepting: Tenant
) -> None:
    flow = Flow(
        engine, accepting, step("write"), step("look", "write", human_role="editor", is_approval_gate=True)
    )
    engine.drain()
    work = flow.activity(step="write").pk
    open_question = open_approval(accepting, [work])
    AgentClient(engine.agent.calls[-1]).post("complete", RESULT)
    gate, answer_written = flow.activity(step="look").pk, threading.Event()

    def answer() -> None:
        with tenant_scope(accepting.pk):
            decisions.approve(accepting.pk, open_question, actor="Bob")
            answer_written.set()
            eventually(somebody_waits_for_a_lock, seconds=60)

    def reject() -> None:
        assert answer_written.wait(60)
        decisions.reject(accepting.pk, gate, actor="Ann", notes="Shorter")

    assert simultaneously(answer, reject) == [None, None]
    settle(engine)

    (revision,) = children(accepting, work, "revision_of")
    assert reasons(engine, revision.pk) == [["rejection"]]


def test_a_question_opened_and_answered_while_a_result_waits_for_the_lock_still_reaches_the_agent(
    engine: Engine, acme: Tenant
) -> None:
    is_called, is_locked = threading.Event(), threading.Event()
    questions: list[UUID] = []

    def answer_when_locked(request: AgentRequest) -> AgentResult:
        is_called.set()
        assert is_locked.wait(60)
        return Completed(Output(content="x"))

    (work,) = engine.submit(acme)
    engine.agent.behaviour = answer_when_locked

    def open_and_answer() -> None:
        assert is_called.wait(60)
        with tenant_scope(acme.pk):
            activity_tree.lock(acme.pk, [work])
            is_locked.set()
            eventually(somebody_waits_for_a_lock, seconds=60)
            questions.append(open_approval(acme, [work]))
            decisions.approve(acme.pk, questions[0], actor="Bob")

    assert simultaneously(open_and_answer, engine.deliver) == [None, True]
    settle(engine)

    assert reasons(engine, work) == [["new_task"], ["review_approved"]]


def set_expiry(tenant: Tenant, activity_id: UUID, *, in_seconds: float = -1.0) -> None:
    with tenant_scope(tenant.pk):
        Activity.objects.filter(pk=activity_id).update(expires_at=Now() + timedelta(seconds=in_seconds))


# Several questions.


def test_work_starts_after_all_its_approvals_and_receives_their_answers_in_order(
    api: Any, engine: Engine, acme: Tenant
) -> None:
    client = api("operator")
    work = submit(client)
    first, second, third = (request_approval(client, work) for _ in range(3))
    assert client.get(f"{ACTIVITIES}{work}/why/").json()["holder"].count("Which direction?") == 3

    decide(client, second, "rejected", "Not like this")
    decide(client, first)
    settle(engine)
    assert client.get(f"{ACTIVITIES}{work}/").json()["status"] == "awaiting_review"
    assert engine.agent.calls == []
    answer = client.post(f"{APPROVALS}{third}/withdraw/", {"reason": "no need"})
    settle(engine)

    assert answer.json()["woken"] == [str(work)]
    assert reasons(engine, work) == [["new_task", "review_feedback", "review_approved", "review_feedback"]]
    received = [wake.get("outcome") for wake in wakes_per_call(engine, work)[0]]
    assert received == [None, "rejected", "approved", "withdrawn"]
    assert [links_of(acme, one)[work] for one in (first, second, third)] == [("woken", "")] * 3
    assert engine.status(acme, work) == "done"


def test_an_expired_approval_counts_as_one_of_several_answers(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    timed = open_approval(acme, [activity_id], due_seconds=60, on_timeout="reject")
    other = open_approval(acme, [activity_id])
    with tenant_scope(acme.pk):
        (due,) = Deadline.objects.filter(activity_id=timed)

    deadlines.pass_due(due.at)
    settle(engine)
    assert (engine.agent.calls, engine.status(acme, other)) == ([], "created")
    decisions.approve(acme.pk, other, actor="Ann")
    settle(engine)

    assert [wake.get("outcome") for wake in wakes_per_call(engine, activity_id)[0]] == [
        None,
        "expired",
        "approved",
    ]


@pytest.mark.parametrize("order", ["review first", "approval first"])
def test_work_waits_for_its_own_review_and_for_an_operators_approval(
    engine: Engine, accepting: Tenant, order: str
) -> None:
    activity_id, agent = accept_work(engine, accepting)
    review = agent.create_with("request_human_review", question="May I?")
    approval = open_approval(accepting, [activity_id])
    steps = [review, approval] if order == "review first" else [approval, review]

    decisions.approve(accepting.pk, steps[0], actor="Ann")
    settle(engine)
    assert engine.status(accepting, activity_id) == "awaiting_review"
    assert engine.status(accepting, steps[1]) == "created", "an answer does not close another question"
    why = wait_reasons.why(accepting.pk, activity_id)
    decisions.approve(accepting.pk, steps[1], actor="Bob")
    settle(engine)

    assert (why.code, why.holder) == (
        "human",
        "reviewer" if order != "review first" else "Which direction?: reviewer",
    )
    assert [wake["reviewed_by"] for wake in wakes_per_call(engine, activity_id)[1]] == ["Ann", "Bob"]
    assert len(wakes_per_call(engine, activity_id)) == 2


def test_an_agents_own_approval_is_not_answered_by_another_approval(
    engine: Engine, accepting: Tenant
) -> None:
    activity_id, agent = accept_work(engine, accepting)
    approval = open_approval(accepting, [activity_id])
    own = agent.create_with("create_approval", **DIRECTION)

    decisions.approve(accepting.pk, approval, actor="Ann")
    assert (engine.status(accepting, activity_id), engine.status(accepting, own)) == (
        "awaiting_review",
        "created",
    )
    decisions.approve(accepting.pk, own, actor="Bob")
    settle(engine)

    assert [wake["approval"] for wake in wakes_per_call(engine, activity_id)[1]] == [str(approval), str(own)]


def test_a_successor_neither_waits_for_questions_of_the_first_agent_itself_nor_receives_their_answers(
    engine: Engine, accepting: Tenant
) -> None:
    activity_id, agent = accept_work(engine, accepting)
    own = agent.create_with("create_approval", **DIRECTION)
    decisions.approve(accepting.pk, own, actor="Bob")
    settle(engine)
    still_open = AgentClient(engine.agent.calls[-1]).create_with("create_approval", **DIRECTION)

    successor = reassignment.reassign(
        accepting.pk, activity_id, actor="Ann", reason="Yours.", agent_role="dev"
    )
    settle(engine)

    assert reasons(engine, successor.pk) == [["new_task"]]
    assert engine.status(accepting, still_open) == "cancelled"


# Decisions while the work is blocked, running or ended.


def _block_work_with_a_question(client: Any, engine: Engine, tenant: Tenant) -> tuple[UUID, UUID]:
    """Return the blocked activity and the open approval about it."""
    activity_id, agent = accept_work(engine, tenant)
    approval = request_approval(client, activity_id)
    agent.create_with("report_blocker", type="api_outage", message="It is down")
    return activity_id, approval


def test_a_decision_during_a_blocker_reaches_the_next_run(
    api: Any, engine: Engine, accepting: Tenant
) -> None:
    client = api("operator")
    activity_id, approval = _block_work_with_a_question(client, engine, accepting)

    response = decide(client, approval)
    settle(engine)
    assert (response["woken"], response["skipped"]) == ([str(activity_id)], [])
    assert client.get(f"{ACTIVITIES}{activity_id}/").json()["status"] == "blocked"
    assert len(engine.agent.calls) == 1
    client.post(f"{ACTIVITIES}{activity_id}/resolve/", {"note": "It is up"})
    settle(engine)

    assert reasons(engine, activity_id) == [["new_task"], ["review_approved", "unblocked"]]


def test_work_that_is_unblocked_after_a_decision_still_waits_for_its_date(
    api: Any, engine: Engine, accepting: Tenant
) -> None:
    client = api("operator")
    activity_id, approval = _block_work_with_a_question(client, engine, accepting)
    date = clock.now() + TOMORROW
    client.patch(f"{ACTIVITIES}{activity_id}/", {"not_before": date.isoformat()})
    decide(client, approval)
    client.post(f"{ACTIVITIES}{activity_id}/resolve/", {"note": "It is up"})

    assert {wake.due_at for wake in wakes_of(accepting, activity_id) if wake.state == "pending"} == {date}, (
        "until then it would be offered, granted and refused again and again"
    )
    assert wait_reasons.why(accepting.pk, activity_id).code == "not_before"
    pass_delays(engine, accepting)
    assert reasons(engine, activity_id) == [["new_task"], ["review_approved", "unblocked"]]


def test_unblocked_work_still_waits_for_its_approval(engine: Engine, accepting: Tenant) -> None:
    activity_id, agent = accept_work(engine, accepting)
    resolution = agent.create_with("report_blocker", type="api_outage", message="It is down")
    approval = open_approval(accepting, [activity_id])
    reason_before = wait_reasons.why(accepting.pk, activity_id)

    suspension.resolve_blocker(accepting.pk, resolution, actor="Ann", note="It is up")
    settle(engine)
    assert (engine.status(accepting, activity_id), len(engine.agent.calls)) == ("awaiting_review", 1)
    decisions.approve(accepting.pk, approval, actor="Ann")
    settle(engine)

    assert reason_before.code == "human"
    assert (
        reason_before.detail
        == "It waits until a person resolves the blocker. It continues when all 2 open requests are done."
    )
    assert reasons(engine, activity_id) == [["new_task"], ["unblocked", "review_approved"]]


def test_decisions_during_a_run_lead_to_exactly_one_more_run(
    api: Any, engine: Engine, accepting: Tenant
) -> None:
    client = api("operator")
    activity_id, agent = accept_work(engine, accepting)
    first, second = request_approval(client, activity_id), request_approval(client, activity_id)
    assert agent.post("heartbeat").json()["stop"] is False, "a running run continues"

    responses = [decide(client, one) for one in (first, second)]
    agent.post("complete", RESULT)
    settle(engine)

    assert [one["woken"] for one in responses] == [[str(activity_id)]] * 2
    assert reasons(engine, activity_id) == [["new_task"], ["review_approved", "review_approved"]]
    AgentClient(engine.agent.calls[-1]).post("complete", RESULT)
    settle(engine)
    assert (len(engine.agent.calls), engine.status(accepting, activity_id)) == (2, "done")
    assert check() == []


def test_work_that_ended_before_the_decision_is_listed_as_skipped(
    api: Any, engine: Engine, accepting: Tenant
) -> None:
    client = api("operator")
    activity_id, agent = accept_work(engine, accepting)
    approval = request_approval(client, activity_id)
    agent.post("complete", RESULT)

    response = decide(client, approval)
    settle(engine)

    assert (response["woken"], response["skipped"]) == ([], [str(activity_id)])
    assert links_of(accepting, approval)[activity_id] == ("skipped", "It was done and did not wait for this.")
    assert len(engine.agent.calls) == 1


@pytest.mark.parametrize("ending", ["fails", "is lost", "is woken meanwhile"])
def test_no_run_starts_while_a_question_is_open_however_the_last_one_ended(
    engine: Engine, accepting: Tenant, ending: str
) -> None:
    activity_id, agent = accept_work(engine, accepting)
    approval = open_approval(accepting, [activity_id])
    if ending == "fails":
        agent.post("fail", FAULT)
    elif ending == "is lost":
        results.record_stalled(run_token_of(accepting, activity_id))
    else:
        earlier = open_approval(accepting, [activity_id])
        decisions.approve(accepting.pk, earlier, actor="Ann")
        agent.post("complete", RESULT)

    pass_delays(engine, accepting)
    assert (engine.status(accepting, activity_id), len(engine.agent.calls)) == ("awaiting_review", 1)
    decisions.approve(accepting.pk, approval, actor="Ann")
    settle(engine)

    assert len(engine.agent.calls) == 2
    assert wakes_per_call(engine, activity_id)[1][-1]["approval"] == str(approval)
    assert check() == []


def test_failed_work_receives_a_decision_when_it_is_retried(engine: Engine, acme: Tenant) -> None:
    fail_first(engine, PermanentAgentError("no", code="no"))
    (activity_id,) = engine.submit(acme)
    engine.drain()
    approval = open_approval(acme, [activity_id])
    still_open = open_approval(acme, [activity_id])

    decisions.approve(acme.pk, approval, actor="Ann")
    settle(engine)
    assert links_of(acme, approval)[activity_id] == (
        "skipped", "It has failed. If it is retried, it starts with the answer.",
    )  # fmt: skip
    cancellation.retry(acme.pk, activity_id, actor="Ann")
    settle(engine)
    assert (engine.status(acme, activity_id), len(engine.agent.calls)) == ("awaiting_review", 1)
    decisions.approve(acme.pk, still_open, actor="Ann")
    settle(engine)

    assert reasons(engine, activity_id) == [["new_task"], ["new_task", "review_approved", "review_approved"]]


def test_cancelling_held_work_closes_questions_about_it_alone(engine: Engine, acme: Tenant) -> None:
    first, second = engine.submit(acme, count=2, not_before=datetime.now(UTC) + TOMORROW)
    about_one, about_both = open_approval(acme, [first]), open_approval(acme, [first, second])

    cancellation.cancel(acme.pk, first, actor="Ann")
    decisions.approve(acme.pk, about_both, actor="Ann")
    pass_delays(engine, acme)

    assert (engine.status(acme, about_one), engine.status(acme, first)) == ("cancelled", "cancelled")
    assert (reasons(engine, first), reasons(engine, second)) == ([], [["new_task", "review_approved"]])


def test_a_successor_receives_earlier_decisions_and_waits_for_open_ones_and_its_time(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + TOMORROW)
    first, second = open_approval(acme, [activity_id]), open_approval(acme, [activity_id])
    decisions.approve(acme.pk, first, actor="Ann")

    successor = reassignment.reassign(acme.pk, activity_id, actor="Ann", reason="better", agent_role="dev")
    settle(engine)
    assert engine.status(acme, successor.pk) == "awaiting_review"
    decisions.approve(acme.pk, second, actor="Ann")
    settle(engine)
    assert engine.agent.calls == []
    pass_delays(engine, acme)

    assert reasons(engine, successor.pk) == [["new_task", "review_approved", "review_approved"]]
    assert engine.status(acme, successor.pk) == "done"
    assert check(quiesced=True) == []


@pytest.mark.parametrize("decided", ["before", "with the person", "after the failure"])
def test_an_agent_receives_what_was_decided_while_its_predecessors_could_not_run(
    engine: Engine, acme: Tenant, decided: str
) -> None:
    def fail(request: AgentRequest) -> AgentResult:
        raise PermanentAgentError("broken")

    (last,) = engine.submit(acme)
    if decided == "after the failure":
        answer, engine.agent.behaviour = engine.agent.behaviour, fail
        engine.drain()
        engine.agent.behaviour = answer
    approval = open_approval(acme, [last])
    if decided != "with the person":
        decisions.approve(acme.pk, approval, actor="Ann")
    if decided != "after the failure":
        last = reassignment.reassign(acme.pk, last, actor="Ann", reason="Yours.", human_role="editor").pk
    if decided == "with the person":
        decisions.approve(acme.pk, approval, actor="Ann")
    assert links_of(acme, approval)[last][0] == "skipped"

    last = reassignment.reassign(acme.pk, last, actor="Ann", reason="Yours.", agent_role="dev").pk
    settle(engine)

    assert reasons(engine, last) == [["new_task", "review_approved"]]
    assert links_of(acme, approval)[last] == ("woken", "")
    assert check(quiesced=True) == []


def test_a_successor_that_a_question_holds_gets_no_grant(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    open_approval(acme, [activity_id])
    relay.flush()

    with relay.collecting() as offers:  # its offer and the withdrawal of that, in one exchange
        reassignment.reassign(acme.pk, activity_id, actor="Ann", reason="better", agent_role="dev")

    assert exchange(offers) == []


def test_work_that_is_offered_again_after_a_withdrawal_gets_a_grant(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme)
    relay.flush()
    with relay.collecting() as offers:
        approval = open_approval(acme, [activity_id])
        decisions.approve(acme.pk, approval, actor="Ann")
        decisions.approve(acme.pk, open_approval(acme, [activity_id]), actor="Ann")

    assert [grant.activity_id for grant in exchange(offers)] == [activity_id]


def test_concurrent_answers_start_the_work_once(engine: Engine, acme: Tenant) -> None:
    ids = engine.submit(acme, count=5)
    questions = [open_approval(acme, ids) for _ in range(4)]

    outcomes = simultaneously(*(partial(decisions.approve, acme.pk, one, actor="Ann") for one in questions))
    settle(engine)

    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert [reasons(engine, one) for one in ids] == [[["new_task", *["review_approved"] * 4]]] * 5


def test_the_prompt_of_a_first_run_after_an_approval_does_not_contradict_itself(
    engine: Engine, acme: Tenant
) -> None:
    (activity_id,) = engine.submit(acme)
    decisions.approve(acme.pk, open_approval(acme, [activity_id]), actor="Ann")
    engine.drain()

    (request,) = engine.agent.calls
    assert "Start from the beginning." in request.prompt
    assert "complete the task" not in request.prompt


# One guard each.


def test_answers_before_the_last_one_do_not_use_the_wake_budget(
    engine: Engine, acme: Tenant, settings: Any
) -> None:
    settings.ORCHESTRATOR_WAKE_BUDGET = 3
    (activity_id,) = engine.submit(acme)
    questions = [open_approval(acme, [activity_id]) for _ in range(5)]

    for one in questions:
        decisions.approve(acme.pk, one, actor="Ann")
    settle(engine)

    assert engine.status(acme, activity_id) == "done"
    assert reasons(engine, activity_id) == [["new_task", *["review_approved"] * 5]]


def test_granted_work_is_not_claimed_while_one_of_its_wakes_is_delayed(engine: Engine, acme: Tenant) -> None:
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


def test_a_wake_during_a_delay_is_delayed_as_well(engine: Engine, acme: Tenant) -> None:
    (activity_id,) = engine.submit(acme, not_before=datetime.now(UTC) + TOMORROW)

    with tenant_scope(acme.pk):
        outbox.record(Activity.objects.get(pk=activity_id), "message", payload={"text": "Hello"})

    (first, second) = wakes_of(acme, activity_id)
    assert first.due_at is not None
    assert second.due_at == first.due_at


def test_decided_work_precedes_work_without_a_question(api: Any, engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant, "qa", max_concurrency=1)
    client = api("operator")
    first, held, urgent = submit(client), submit(client), submit(client, priority=1)
    approval, other = request_approval(client, held), request_approval(client, urgent)
    last = submit(client)

    decide(client, approval)
    decide(client, other)
    settle(engine)

    assert [call.activity_id for call in engine.agent.calls] == [first, urgent, held, last]
    assert [engine.get(tenant, each).priority for each in (first, urgent, held, last)] == [10, 1, 5, 10]
    with tenant_scope(tenant.pk):
        event = ActivityEvent.objects.get(activity_id=held, verb="reschedule")
    assert event.detail == {"changes": {"priority": [10, 5]}, "reason": "decided"}


def test_steps_after_a_decision_get_priority_unless_they_set_their_own(engine: Engine, acme: Tenant) -> None:
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
    decisions.approve(acme.pk, gate.pk, actor="Ann")
    flow.drain()

    with tenant_scope(acme.pk):
        activities = Activity.objects.filter(pipeline_run_id=flow.id, link_kind=None)
        priorities = dict(activities.values_list("step", "priority"))
    assert priorities == {"draft": 15, "publish": 5, "archive": 20, "thank": 15}
