"""Damage to waiting, decided, reassigned and failed work breaks exactly the expected invariants."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from activities import (
    activity_tree,
    cancellation,
    dead_letters,
    reassignment,
    relay,
    rescheduling,
    run_tokens,
    suspension,
)
from activities.decision_rules import DecisionRules, Later, Voter
from activities.execution import agent_tools
from activities.human_tasks import approvals, deadlines, decisions
from activities.human_tasks.approvals import NewApproval
from activities.maintenance import invariants
from activities.models import Wake
from activities.run_tokens import RunToken
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.exceptions import PermanentAgentError, RetryableAgentError
from tenants import pausing
from tenants.context import tenant_scope
from tenants.models import PauseKind, Tenant
from tests.damage import temporary_damage
from tests.engine import Engine

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_at_a_time")]

#: No worker serves this role, so its work keeps waiting.
UNSERVED = "blog-writer"
SEVERAL = DecisionRules(
    quorum=2, voters=3, options=("long", "short"), asked_by="user:ines", self_approval=False
)
IN_TIME = DecisionRules(due_seconds=3600, reminders=(Later(600),), on_timeout="reject")


def _behave(request: AgentRequest) -> AgentResult:
    if request.params.get("fails"):
        raise PermanentAgentError("never")
    return Accepted() if request.params.get("calls_back") else Completed(Output(content=request.name))


@dataclass
class Waiting:
    """Creates intact work that waits, was decided, was reassigned, or has failed."""

    engine: Engine
    tenant: Tenant

    def token(self, **fields: Any) -> RunToken:
        """The run of an agent that has accepted its work."""
        self.engine.submit(self.tenant, "dev", params={"calls_back": True}, **fields)
        self.engine.drain()
        token = run_tokens.read(self.engine.agent.calls[-1].callback.token)
        assert token is not None
        return token

    def call(self, tool: str, **arguments: Any) -> tuple[UUID, UUID]:
        """Let an agent call the tool; return its activity and what the call created."""
        token = self.token()
        return token.activity_id, UUID(agent_tools.perform(token, tool, arguments).body["id"])

    def approval(self, *linked: UUID, rules: DecisionRules) -> UUID:
        with tenant_scope(self.tenant.pk):
            new = NewApproval(type="content_direction", title="Which way?", rules=rules)
            approval = approvals.open_approval(self.tenant.pk, new, actor="user:ines", identity="user:ines")
            rows = activity_tree.lock(self.tenant.pk, linked)
            approvals.link(self.tenant.pk, approval, list(rows.values()), actor="user:ines")
        return approval


@pytest.fixture
def waiting(engine: Engine, tenant: Tenant) -> Waiting:
    engine.agent.behaviour = _behave
    engine.serve(tenant)
    work = Waiting(engine, tenant)
    work.call("report_blocker", type="api_outage", message="The shop does not answer")
    _, resolution = work.call("report_blocker", type="api_outage", message="It does not either")
    _, subtask = work.call("create_subtask", name="part", agent_role=UNSERVED, blocking=True)
    work.call("request_human_review", question="Like this?")
    work.approval(rules=IN_TIME)
    work.call("reassign_task", human_role="editor", reason="needs a person")
    reassignment.reassign(
        tenant.pk, subtask, actor="user:ines", reason="other role", agent_role="qa-engineer"
    )
    _decide(work)
    _fail(work)
    suspension.resolve_blocker(tenant.pk, resolution, actor="user:ines", note="It answers again")
    deadlines.pass_due(datetime.now(UTC) + timedelta(seconds=900))
    relay.flush()
    return work


def _decide(work: Waiting) -> None:
    """Decide a gate in each way, leave an approval with one of two votes that holds work, and decide one that wakes work."""
    for decision in ("approve", "reject"):
        (draft,) = work.engine.submit(work.tenant, "qa", requires_approval=True)
        work.engine.drain()
        decisions.decide(work.tenant.pk, draft, decision, by=Voter("user:ines"), notes="because")
    held, woken, started = work.engine.submit(work.tenant, UNSERVED, count=3)
    still_open = work.approval(held, started, rules=SEVERAL)
    decisions.approve(
        work.tenant.pk, still_open, actor=Voter("user:noa", identity="user:noa"), chosen_option="long"
    )
    decided = work.approval(woken, rules=DecisionRules())
    decisions.approve(work.tenant.pk, decided, actor="user:noa")


def _fail(work: Waiting) -> None:
    """Let an activity fail permanently, with an alert and an escalation."""
    work.engine.submit(work.tenant, "qa", params={"fails": True})
    work.engine.drain()
    assert dead_letters.handle_waiting() == 1


def _broken(*, quiesced: bool = False) -> set[str]:
    return {violation.invariant for violation in invariants.check(quiesced=quiesced)}


def test_intact_waiting_work_breaks_no_invariant(waiting: Waiting) -> None:
    assert invariants.check(quiesced=True) == []


OPEN = "status IN ('created', 'in_progress')"

#: The invariants that are broken, and the statement that breaks exactly these.
DAMAGE = {
    "held work lost its wake": (
        {"I08"},
        "UPDATE activities_wake w SET state = 'consumed' FROM activities_activity a"
        " WHERE a.id = w.activity_id AND a.status = 'awaiting_review' AND w.state = 'pending'",
    ),
    "the resolution of a blocker is missing": (
        {"I09"},
        f"UPDATE activities_activity SET parent_id = NULL, link_kind = NULL WHERE link_kind = 'resolution' AND {OPEN}",
    ),
    "a resolution is open although nothing is blocked": (
        {"I04", "I09"},
        "UPDATE activities_activity SET status = 'done', finished_at = now() WHERE status = 'blocked'",
    ),
    "a blocker has two resolutions": (
        {"I09", "I25"},
        "UPDATE activities_activity SET link_kind = 'resolution', parent_id ="
        " (SELECT id FROM activities_activity WHERE status = 'blocked') WHERE name = 'work 0' AND agent_role = 'blog-writer'",
    ),
    "the successor of a subtask is missing": (
        {"I09", "I10"},
        "UPDATE activities_activity SET parent_id = NULL, link_kind = NULL WHERE agent_role = 'qa-engineer'",
    ),
    "a subtask is not blocking although its parent waits for it": (
        {"I09"},
        """UPDATE activities_activity SET metadata = '{"blocking": false}' WHERE name = 'part' AND status = 'reassigned'""",
    ),
    "a subtask is blocking although its parent does not wait": (
        {"I09"},
        "UPDATE activities_activity SET parent_id = (SELECT id FROM activities_activity WHERE status = 'blocked')"
        " WHERE link_kind = 'subtask'",
    ),
    "a review is missing": (
        {"I09"},
        "UPDATE activities_activity SET parent_id = NULL, link_kind = NULL WHERE link_kind = 'review'",
    ),
    "work is held by nothing": ({"I09"}, "DELETE FROM approval_linked_activities WHERE state = 'waiting'"),
    "a link waits for a reassigned activity": (
        {"I09"},
        "UPDATE approval_linked_activities SET activity_id = (SELECT id FROM activities_activity"
        " WHERE status = 'reassigned' AND name = 'part') WHERE state = 'waiting' AND activity_id = (SELECT max(activity_id::text)::uuid"
        " FROM approval_linked_activities WHERE state = 'waiting')",
    ),
    "work has two successors": (
        {"I10"},
        "UPDATE activities_activity SET link_kind = 'reassigned_from', parent_id = (SELECT id FROM activities_activity"
        " WHERE status = 'reassigned' AND name = 'part') WHERE status = 'approved' AND requires_approval",
    ),
    "rejected work has no revision": (
        {"I10"},
        "UPDATE activities_activity SET parent_id = NULL, link_kind = NULL WHERE link_kind = 'revision_of'",
    ),
    "a failure has no dead letter": ({"I14"}, "DELETE FROM activities_deadletter"),
    "a dead letter is open although the work continues": (
        {"I04", "I14"},
        "UPDATE activities_activity SET status = 'done' WHERE status = 'needs_review'",
    ),
    "a failure counts as replayed although it was not": (
        {"I14"},
        "UPDATE activities_deadletter SET state = 'replayed'",
    ),
    "a handled failure has no escalation": (
        {"I14"},
        "UPDATE activities_deadletter SET escalation_id = NULL",
    ),
    "a dead letter names a foreign escalation": (
        {"I14"},
        "UPDATE activities_deadletter SET escalation_id = (SELECT id FROM activities_activity WHERE link_kind = 'review')",
    ),
    "an alert names a failure without an escalation": (
        {"I14"},
        "UPDATE activities_deadletter SET escalation_id = NULL, handled_at = NULL",
    ),
    "a decision names nobody": (
        {"I15"},
        "UPDATE activities_activity SET decided_by = NULL WHERE link_kind = 'approval' AND status = 'approved'",
    ),
    "a gate and its activity were decided by different people": (
        {"I15"},
        "UPDATE activities_activity SET decided_by = 'user:eve' WHERE link_kind = 'gate' AND status = 'approved'",
    ),
    "a gate was decided and its activity was not": (
        {"I04", "I15"},
        "UPDATE activities_activity SET status = 'done' WHERE status = 'approved' AND requires_approval",
    ),
    "an approval was decided by too few": (
        {"I04", "I09", "I15"},
        "UPDATE activities_activity SET status = 'approved', decided_by = 'user:noa', decided_at = now(), finished_at = now()"
        " WHERE link_kind = 'approval' AND status = 'in_progress'",
    ),
    "enough people have voted and nothing was decided": (
        {"I15"},
        "INSERT INTO activities_vote (tenant_id, activity_id, voter, actor, decision, notes)"
        " SELECT tenant_id, activity_id, 'user:sam', actor, decision, notes FROM activities_vote",
    ),
    "the person who asked has voted": ({"I15"}, "UPDATE activities_vote SET voter = 'user:ines'"),
    "an approval has no row of its own": (
        {"I15"},
        "DELETE FROM activities_approval WHERE id = (SELECT max(id::text)::uuid FROM activities_approval)",
    ),
    "a link waits for a decided approval": (
        {"I15"},
        "UPDATE approval_linked_activities SET state = 'waiting' WHERE state = 'woken'",
    ),
    "an approval has woken work before its decision": (
        {"I09", "I15"},
        "UPDATE approval_linked_activities SET state = 'woken' WHERE state = 'waiting'",
    ),
    "work that an approval has woken has no such wake": (
        {"I15"},
        "UPDATE activities_wake SET payload = payload - 'approval' WHERE payload ? 'approval'",
    ),
    "an approval has woken work twice": (
        {"I15"},
        "INSERT INTO activities_wake (id, tenant_id, activity_id, reason, cause, payload, fingerprint, state, merged, created_at)"
        " SELECT gen_random_uuid(), tenant_id, activity_id, reason, cause, payload, 'again', state, merged, created_at"
        " FROM activities_wake WHERE payload ? 'approval'",
    ),
    "a review exists without a tool call": (
        {"I25"},
        "DELETE FROM activities_toolcall WHERE tool = 'request_human_review'",
    ),
    "a call has no effect": (
        {"I25"},
        """UPDATE activities_toolcall SET answer = jsonb_set(answer, '{id}', to_jsonb(gen_random_uuid()))"""
        " WHERE tool = 'reassign_task'",
    ),
    "two calls have one effect": (
        {"I25"},
        "INSERT INTO activities_toolcall (id, tenant_id, activity_id, run_id, tool, digest, arguments, answer)"
        " SELECT gen_random_uuid(), tenant_id, activity_id, run_id, tool, 'again', arguments, answer FROM activities_toolcall",
    ),
    "work was reassigned to an earlier role": (
        {"I08", "I25"},
        "UPDATE activities_activity SET agent_role = 'dev', human_role = NULL, assignee_type = 'agent'"
        " WHERE human_role = 'editor' AND link_kind = 'reassigned_from'",
    ),
    "a reminder came before its time": (
        {"I30"},
        "UPDATE activities_deadline SET happened_at = at - interval '1 minute' WHERE happened_at IS NOT NULL",
    ),
    "a later deadline has happened before an earlier one": (
        {"I30"},
        "UPDATE activities_deadline SET happened_at = CASE kind WHEN 'due' THEN at ELSE NULL END",
    ),
    "a reminder came after the answer": (
        {"I30"},
        "UPDATE activities_activity SET finished_at = now() - interval '1 hour'"
        " WHERE id IN (SELECT activity_id FROM activities_deadline)",
    ),
    "a default outcome is not what the rules say": (
        {"I30"},
        "UPDATE activities_activity SET decided_by = 'deadline' WHERE link_kind = 'approval' AND status = 'approved'",
    ),
}


def test_each_damage_breaks_exactly_the_expected_invariants(waiting: Waiting) -> None:
    broken_by = {}
    for damage, (_, statement) in DAMAGE.items():
        with temporary_damage(statement) as changed:
            assert all(changed), f"the damage must be done for the test to mean anything: {damage}"
            broken_by[damage] = _broken()

    assert broken_by == {damage: broken for damage, (broken, _) in DAMAGE.items()}
    assert _broken() == set(), "all damage was rolled back"


LOWERED = {
    "ORCHESTRATOR_TOOL_CALLS_PER_RUN": 0,
    "ORCHESTRATOR_SUBTASKS_PER_ACTIVITY": 0,
    "ORCHESTRATOR_SUBTASK_DEPTH": 0,
    "ORCHESTRATOR_ACTIVITIES_PER_TREE": 1,
    "ORCHESTRATOR_REASSIGNMENTS": 0,
}


def test_exceeded_limits_break_their_invariant(waiting: Waiting, settings: Any) -> None:
    broken_by = {}
    for limit, lowered in LOWERED.items():
        allowed = getattr(settings, limit)
        setattr(settings, limit, lowered)
        broken_by[limit] = _broken()
        setattr(settings, limit, allowed)

    assert broken_by == {key: {"I25"} for key in LOWERED}


def test_forgotten_deadlines_and_failures_break_liveness(waiting: Waiting) -> None:
    for statement in (
        "UPDATE activities_deadline SET at = now() - interval '5 minutes' WHERE happened_at IS NULL",
        "UPDATE activities_deadletter SET handled_at = NULL, escalation_id = NULL, state = 'closed',"
        " created_at = created_at - interval '5 minutes'",
    ):
        with temporary_damage(statement) as changed:
            assert all(changed)
            assert "I19" not in _broken()
            assert "I19" in _broken(quiesced=True)


def test_deadlines_of_a_suspended_tenant_may_wait(waiting: Waiting) -> None:
    with tenant_scope(waiting.tenant.pk):
        Tenant.objects.filter(pk=waiting.tenant.pk).update(is_active=False)

    with temporary_damage(
        "UPDATE activities_deadline SET at = now() - interval '5 minutes' WHERE happened_at IS NULL"
    ) as changed:
        assert all(changed)
        assert "I19" not in _broken(quiesced=True)


def test_work_that_an_approval_has_woken_may_fail_and_be_retried_and_delayed(
    engine: Engine, tenant: Tenant
) -> None:
    def fail(request: AgentRequest) -> AgentResult:
        raise errors.pop()

    errors = [RetryableAgentError("not now", code="again"), PermanentAgentError("never")]
    work = Waiting(engine, tenant)
    engine.agent.behaviour = fail
    engine.serve(tenant)
    (woken,) = engine.submit(tenant)
    decisions.approve(tenant.pk, work.approval(woken, rules=DecisionRules()), actor="user:noa")
    engine.drain()

    cancellation.retry(tenant.pk, woken, actor="user:noa")
    engine.drain()

    with tenant_scope(tenant.pk):
        causes = list(
            Wake.objects.filter(activity_id=woken, payload__has_key="approval").values_list("cause", "state")
        )
    assert sorted(causes) == [("retry", "pending"), ("wake", "taken")]
    assert _broken() == set()


@pytest.mark.parametrize("adapter", ["anthropic", "openai"])
@pytest.mark.parametrize("runs_now", [False, True])
def test_a_paused_provider_excuses_only_its_own_waiting_work_that_nobody_lets_run_now(
    engine: Engine, tenant: Tenant, adapter: str, runs_now: bool
) -> None:
    engine.serve(tenant, "qa", adapter=adapter)
    with tenant_scope(tenant.pk):
        pausing.switch_part(
            tenant.pk, PauseKind.PROVIDER, "anthropic", name="anthropic", paused=True, actor="test"
        )
    (work,) = engine.submit(tenant, "qa")
    if runs_now:
        rescheduling.run_now(tenant.pk, work, actor="test", reason="The client waits.")

    with temporary_damage("UPDATE activities_wake SET created_at = now() - interval '5 minutes'"):
        assert ("I19" in _broken(quiesced=True)) is (runs_now or adapter == "openai")


def test_a_call_that_continues_after_its_activity_was_suspended_may_hold_its_slot(
    engine: Engine, tenant: Tenant
) -> None:
    broken_by: list[set[str]] = []

    def suspend_and_continue(request: AgentRequest) -> AgentResult:
        token = run_tokens.read(request.callback.token)
        assert token is not None
        agent_tools.perform(
            token, "report_blocker", {"type": "api_outage", "message": "The shop does not answer"}
        )
        broken_by.append(_broken(quiesced=True))
        return Completed(Output(content="never mind"))

    engine.agent.behaviour = suspend_and_continue
    engine.serve(tenant)
    engine.submit(tenant, "dev")
    engine.drain()

    assert broken_by == [set()]


@pytest.mark.parametrize(
    ("tool", "question"),
    [
        ("create_subtask", {"name": "Photos", "human_role": "editor", "blocking": False}),
        ("create_approval", {"type": "content_direction", "title": "Which photos?"}),
    ],
)
def test_a_question_that_repeats_an_open_one_may_have_the_same_effect(
    waiting: Waiting, tool: str, question: dict[str, Any]
) -> None:
    token = waiting.token()
    if tool == "create_approval":
        part = {"name": "Photos", "agent_role": "dev", "blocking": False, "params": {"calls_back": True}}
        question = {
            **question,
            "activity_ids": [UUID(agent_tools.perform(token, "create_subtask", part).body["id"])],
        }

    answers = [agent_tools.perform(token, tool, question, key=key) for key in ("first", "second")]

    assert answers[0].body["id"] == answers[1].body["id"]
    assert not any(answer.repeated or answer.body["stop"] for answer in answers)
    assert _broken() == set()
