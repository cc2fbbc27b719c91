"""The checker, checked, on everything that waits, is decided, is handed on or has failed: each kind of damage is found and named."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from activities import (
    approvals,
    blockers,
    deadletters,
    deadlines,
    families,
    invariants,
    reassignment,
    relay,
    run_tokens,
    tools,
)
from activities.approvals import NewApproval
from activities.decision_rules import DecisionRules, Later, Voter
from activities.run_tokens import RunToken
from agents.contracts import Accepted, AgentRequest, AgentResult, Completed, Output
from agents.exceptions import PermanentAgentError
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.damage import past_all_guards
from tests.engine import Engine

pytestmark = pytest.mark.usefixtures("one_at_a_time")

#: No worker serves it, so its work stays where it is.
UNSERVED = "blog-writer"
SEVERAL = DecisionRules(quorum=2, voters=3, options=("long", "short"), asked_by="user:ines", self_approval=False)
IN_TIME = DecisionRules(due_seconds=3600, reminders=(Later(600),), on_timeout="reject")


def _behave(request: AgentRequest) -> AgentResult:
    if request.params.get("fails"):
        raise PermanentAgentError("never")
    return Accepted() if request.params.get("calls_back") else Completed(Output(content=request.name))


@dataclass
class Waiting:
    """Some of everything that waits, was decided, handed on, or has failed. All of it sound."""

    engine: Engine
    tenant: Tenant

    def token(self, **fields: Any) -> RunToken:
        """The run of an agent that has accepted some work."""
        self.engine.submit(self.tenant, "dev", params={"calls_back": True}, **fields)
        self.engine.drain()
        token = run_tokens.read(self.engine.agent.calls[-1].callback.token)
        assert token is not None
        return token

    def call(self, tool: str, **arguments: Any) -> tuple[UUID, UUID]:
        """The activity of an agent that calls the tool, and what comes of it."""
        token = self.token()
        return token.activity_id, UUID(tools.call(token, tool, arguments).body["id"])

    def approval(self, *linked: UUID, rules: DecisionRules) -> UUID:
        with tenant_scope(self.tenant.pk):
            new = NewApproval(type="content_direction", title="Which way?", rules=rules)
            asked = approvals.open_approval(self.tenant.pk, new, actor="user:ines", identity="user:ines")
            rows = families.lock(self.tenant.pk, linked)
            approvals.link(self.tenant.pk, asked, list(rows.values()), actor="user:ines", may_hold=linked)
        return asked


@pytest.fixture
def waiting(engine: Engine, tenant: Tenant) -> Waiting:
    engine.agent.behaviour = _behave
    engine.serve(tenant)
    work = Waiting(engine, tenant)
    work.call("report_blocker", type="api_outage", message="The shop does not answer")
    _, resolution = work.call("report_blocker", type="api_outage", message="It does not either")
    _, subtask = work.call("create_subtask", name="part", agent_role=UNSERVED, blocking=True)
    work.call("request_human_review", question="Like this?", rules=IN_TIME)
    work.call("reassign_task", human_role="editor", reason="needs a person")
    reassignment.reassign(tenant.pk, subtask, actor="user:ines", reason="other role", agent_role="qa-engineer")
    _decide(work)
    _fail(work)
    blockers.resolve(tenant.pk, resolution, actor="user:ines", note="It answers again")
    deadlines.pass_due(datetime.now(UTC) + timedelta(seconds=900))
    relay.flush()
    return work


def _decide(work: Waiting) -> None:
    """A gate each way, an approval that one of two has voted for and that holds work, and one that has woken work."""
    for decision in ("approve", "reject"):
        (draft,) = work.engine.submit(work.tenant, "qa", requires_approval=True)
        work.engine.drain()
        approvals.decide(work.tenant.pk, draft, decision, by=Voter("user:ines"), notes="because")
    held, woken, runs = work.engine.submit(work.tenant, UNSERVED, count=3)
    still_open = work.approval(held, runs, rules=SEVERAL)
    approvals.approve(work.tenant.pk, still_open, actor=Voter("user:noa", identity="user:noa"), chosen_option="long")
    decided = work.approval(woken, rules=DecisionRules())
    approvals.approve(work.tenant.pk, decided, actor="user:noa")


def _fail(work: Waiting) -> None:
    """A failure that people were told of."""
    work.engine.submit(work.tenant, "qa", params={"fails": True})
    work.engine.drain()
    assert deadletters.handle_waiting() == 1


def _broken(*, quiesced: bool = False) -> set[str]:
    return {violation.invariant for violation in invariants.check(quiesced=quiesced)}


def test_everything_that_waits_is_sound(waiting: Waiting) -> None:
    assert invariants.check(quiesced=True) == []


OPEN = "status IN ('created', 'in_progress')"

#: What is done to the rows, the invariants that it breaks, and nothing else.
DAMAGE = {
    "held work lost its wake": (
        {"I08"},
        "UPDATE activities_wake w SET state = 'consumed' FROM activities_activity a"
        " WHERE a.id = w.activity_id AND a.status = 'awaiting_review' AND w.state = 'pending'",
    ),
    "a blocker's resolution is gone": (
        {"I09"},
        f"UPDATE activities_activity SET parent_id = NULL, link_kind = NULL WHERE link_kind = 'resolution' AND {OPEN}",
    ),
    "a resolution is open though nothing is blocked": (
        {"I03", "I04", "I09"},
        "UPDATE activities_activity SET status = 'done', finished_at = now() WHERE status = 'blocked'",
    ),
    "a blocker has two resolutions": (
        {"I09", "I25"},
        "UPDATE activities_activity SET link_kind = 'resolution', parent_id ="
        " (SELECT id FROM activities_activity WHERE status = 'blocked') WHERE name = 'work 0' AND agent_role = 'blog-writer'",
    ),
    "the heir of a subtask is gone": (
        {"I09", "I10"},
        "UPDATE activities_activity SET parent_id = NULL, link_kind = NULL WHERE agent_role = 'qa-engineer'",
    ),
    "a subtask does not block though its parent waits for it": (
        {"I09"},
        """UPDATE activities_activity SET metadata = '{"blocking": false}' WHERE name = 'part' AND status = 'reassigned'""",
    ),
    "a subtask blocks though its parent does not wait": (
        {"I09"},
        "UPDATE activities_activity SET parent_id = (SELECT id FROM activities_activity WHERE status = 'blocked')"
        " WHERE link_kind = 'subtask'",
    ),
    "a review is gone": (
        {"I09"},
        "UPDATE activities_activity SET parent_id = NULL, link_kind = NULL WHERE link_kind = 'review'",
    ),
    "work is held by nothing": ({"I09"}, "DELETE FROM approval_linked_activities WHERE state = 'waiting'"),
    "a link waits for what was handed on": (
        {"I09"},
        "UPDATE approval_linked_activities SET activity_id = (SELECT id FROM activities_activity"
        " WHERE status = 'reassigned' AND name = 'part') WHERE state = 'waiting' AND activity_id = (SELECT max(activity_id::text)::uuid"
        " FROM approval_linked_activities WHERE state = 'waiting')",
    ),
    "work has two heirs": (
        {"I10"},
        "UPDATE activities_activity SET link_kind = 'reassigned_from', parent_id = (SELECT id FROM activities_activity"
        " WHERE status = 'reassigned' AND name = 'part') WHERE link_kind IS NULL AND status = 'done' OR link_kind = 'revision_of'",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_named(what: str, waiting: Waiting) -> None:
    invariants_broken, statement = DAMAGE[what]

    with past_all_guards() as run:
        assert run(statement), "the damage must be done for the test to mean anything"

    assert _broken() == invariants_broken
