"""A rejection makes a revision: the same work again, with the rejected output and the notes, as the next round."""

from __future__ import annotations

from uuid import UUID

from django.conf import settings

from activities import states
from activities.decision_rules import GENERAL_ROLE
from activities.models import Activity
from activities.states import LinkKind, Status, WakeReason
from activities.submission import NewActivity, submit

SUFFIX = " (revision)"


def make_anew(rejected: Activity, notes: str, actor: str) -> None:
    """Create the revision before the rejection is announced, so that the pipeline sees the step go on."""
    if rejected.status != Status.AWAITING_APPROVAL:
        return  # Decided already: the transition will say so.
    if rejected.round >= settings.ORCHESTRATOR_MAX_ROUNDS:
        _escalate(rejected, notes)
    else:
        revise(rejected, notes=notes, actor=actor)


def revise(rejected: Activity, *, notes: str, actor: str, requires_approval: bool | None = None) -> UUID:
    """The same work again as the next round, told what was wrong. In the caller's transaction; idempotent per round."""
    revision = revision_of(rejected, notes=notes, requires_approval=requires_approval)
    return submit([revision], actor=actor, bounded=False)[0].id


def revision_of(rejected: Activity, *, notes: str, requires_approval: bool | None = None) -> NewActivity:
    """The next round of the same work, to be submitted."""
    name = (
        rejected.name if rejected.name.endswith(SUFFIX) else f"{rejected.name[: 200 - len(SUFFIX)]}{SUFFIX}"
    )
    return NewActivity(
        name=name,
        description=rejected.description,
        agent_role=rejected.agent_role,
        human_role=rejected.human_role,  # a person may have taken the work over
        requires_approval=rejected.requires_approval if requires_approval is None else requires_approval,
        priority=min(rejected.priority, states.BANDS["gated"]),
        params=rejected.params,
        metadata=rejected.metadata,
        input=rejected.input,
        input_ref=rejected.input_ref,
        parent_id=rejected.id,
        link_kind=LinkKind.REVISION_OF,
        deliverable_id=rejected.deliverable_id,
        mailbox_id=rejected.mailbox_id,
        pipeline_run_id=rejected.pipeline_run_id,
        step=rejected.step,
        branch=rejected.branch,
        round=rejected.round + 1,
        schedule_id=rejected.schedule_id,
        group_key=rejected.group_key,
        group_scope=rejected.group_scope,
        files=rejected.files,
        timeout_seconds=rejected.timeout_seconds,
        retry=rejected.retry,
        max_attempts=rejected.max_attempts,
        agent_options=rejected.agent_options,
        decision_rules=rejected.decision_rules,
        reviewer_notes=notes,
        wake_reason=WakeReason.REJECTION,
        wake_payload={
            "rejection_ref": str(rejected.output_ref) if rejected.output_ref else None,
            "reviewer_notes": notes,
        },
    )


def _escalate(rejected: Activity, notes: str) -> None:
    submit(
        [
            NewActivity(
                name=f"Rejected {rejected.round} times: {rejected.name}"[:200],
                description="No further revision is made by itself. Change the work, its agent or its instructions.",
                human_role=GENERAL_ROLE,
                priority=states.BANDS["urgent"],
                parent_id=rejected.id,
                link_kind=LinkKind.ESCALATION,
                deliverable_id=rejected.deliverable_id,
                mailbox_id=rejected.mailbox_id,
                reviewer_notes=notes,
            )
        ],
        actor="engine",
    )
