"""Errors of operations on activities."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID

from activities import states
from tenants.exceptions import NoneOfKind, OneOfKind, Refusal
from tenants.money import plain


class ActivityError(Refusal):
    """The operation on the activity is not possible."""

    code = "activity_error"


class NotFound(NoneOfKind, ActivityError):
    """The tenant has no object of this kind with this key."""


class AlreadyExists(OneOfKind, ActivityError):
    """The tenant already has an object of this kind with this name."""


class TransitionRefused(ActivityError):
    """The activity was no longer in a status that this transition starts from."""

    code = "transition_refused"

    def __init__(self, activity_id: UUID, verb: str, current: str, message: str = "") -> None:
        super().__init__(
            message
            or f"Activity {activity_id} is {current}, which does not allow the action {verb.replace('_', ' ')!r}."
        )
        self.activity_id, self.verb, self.current = activity_id, verb, current


class StillHeld(TransitionRefused):
    """The activity waits for something that cannot be skipped: an answer from people, or other work."""

    code = "still_held"


class AlreadyDecided(TransitionRefused):
    """Somebody else decided first. The message says who, what and when."""

    code = "already_decided"


class AlreadyVoted(TransitionRefused):
    """This person has voted already. The message says how."""

    code = "already_voted"

    def __init__(self, activity_id: UUID, verb: str, current: str, vote: Any) -> None:
        decision = states.target_of(vote.decision)
        text = f"{vote.actor} has voted about this at {vote.at:%Y-%m-%dT%H:%M:%SZ}: {decision}."
        super().__init__(activity_id, verb, current, text)
        self.problem_members = {"decision": decision, "decided_by": vote.actor, "decided_at": vote.at}


class RunSuperseded(ActivityError):
    """The run was lost, cancelled or has ended, so its report is ignored."""

    code = "run_superseded"

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"Run {run_id} is no longer the live run of its activity.")
        self.run_id = run_id


class OutOfBudget(ActivityError):
    """A budget has no room for a run, so the run does not start or is stopped. `budget` is the budget's current row."""

    code = "budget"

    def __init__(self, budget: Any, need: Decimal) -> None:
        super().__init__(
            f"The budget {budget.name} is used up: {plain(budget.spent)} of {plain(budget.cap)} {budget.unit} spent,"
            f" {plain(budget.reserved)} reserved for running work."
        )
        self.budget_id: UUID = budget.id
        self.need = need


class SubmissionInvalid(ActivityError):
    """The submission has errors; each names its path."""

    code = "validation_failed"
    status = 400

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(f"{error['path']}: {error['message']}" for error in errors))
        self.errors = errors


class OutputUnavailable(ActivityError):
    """The output exists, but its store does not answer."""

    code = "output_unavailable"
    status = 503


class OutputTooLarge(ActivityError):
    """The output has more bytes than are allowed."""

    code = "output_too_large"
    status = 413


class QuotaExceeded(ActivityError):
    """An agent exceeded a quota of its run, its activity or its tree. `quota` names which.

    `retry_after`: seconds until the quota allows another call; None if time alone does not renew it.
    """

    code = "quota_exceeded"
    status = 429

    def __init__(self, quota: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.problem_members = {"quota": quota}
        self.retry_after = retry_after


class ToolRefused(ActivityError):
    """The agent may not use this tool with these arguments."""

    code = "tool_refused"
    status = 403


class KeyReused(ActivityError):
    """The Idempotency-Key was used before, for a different call or other lines of the same run."""

    code = "idempotency_key_reused"
    status = 422


class DecisionForbidden(ActivityError):
    """The caller may not decide this item."""

    code = "forbidden"
    status = 403


class PersonRequired(DecisionForbidden):
    """A person must decide this, and the caller's token belongs to no person."""

    code = "person_required"


class MailboxError(ActivityError):
    """The operation on the mailbox is not possible."""

    code = "mailbox_error"


class MailboxFull(MailboxError):
    """Too many items wait in the mailbox."""

    code = "mailbox_full"
    status = 429


class LeaseLost(MailboxError):
    """The consumer no longer holds the batch: its lease expired and its items were returned, or the batch has ended."""

    code = "lease_lost"
