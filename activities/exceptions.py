"""What can be wrong with asking for something to happen to an activity."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from tenants.exceptions import NoneOfKind, OneOfKind


class ActivityError(Exception):
    """The activity cannot do what was asked."""

    code: ClassVar[str] = "activity_error"
    status: ClassVar[int] = 409


class NotFound(NoneOfKind, ActivityError):
    """The tenant has nothing of this kind and key."""


class AlreadyExists(OneOfKind, ActivityError):
    """The tenant has something of this kind and name already."""


class TransitionRefused(ActivityError):
    """The activity was no longer in a state this step starts from."""

    code = "transition_refused"

    def __init__(self, activity_id: UUID, verb: str, current: str, message: str = "") -> None:
        super().__init__(
            message or f"Activity {activity_id} is {current}; it cannot {verb.replace('_', ' ')} from there."
        )
        self.activity_id, self.verb, self.current = activity_id, verb, current


class StillHeld(TransitionRefused):
    """It waits for something that cannot be skipped: an answer of people, or other work."""

    code = "still_held"


class AlreadyDecided(TransitionRefused):
    """Somebody else decided first. Says who, what and when."""

    code = "already_decided"


class AlreadyVoted(TransitionRefused):
    """One person has one voice. Says what it was."""

    code = "already_voted"

    def __init__(self, activity_id: UUID, verb: str, current: str, vote: Any) -> None:
        text = f"{vote.actor} has voted about this at {vote.at:%Y-%m-%dT%H:%M:%SZ}: {vote.decision}."
        super().__init__(activity_id, verb, current, text)
        self.problem_members = {"decision": vote.decision, "decided_by": vote.actor, "decided_at": vote.at}


class RunSuperseded(ActivityError):
    """This run was lost, cancelled or ended, so what it reports no longer counts."""

    code = "run_superseded"

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"Run {run_id} is no longer the live run of its activity.")
        self.run_id = run_id


class OutOfBudget(ActivityError):
    """A budget has no room for what a run may need, so it does not start, or goes on no more. `budget` is its row as it stands."""

    code = "budget"

    def __init__(self, budget: Any, need: Decimal) -> None:
        super().__init__(
            f"The budget {budget.name} is used up: {plain(budget.spent)} of {plain(budget.cap)} {budget.unit} spent,"
            f" {plain(budget.reserved)} kept for runs that are going on."
        )
        self.budget_id: UUID = budget.id
        self.need = need


def plain(amount: Decimal) -> str:
    """An amount as people write it: 0.3 and not 0.300000000000 or 3E-1."""
    text = f"{amount:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


class SubmissionInvalid(ActivityError):
    """What was submitted has errors; each is named by its path."""

    code = "validation_failed"
    status = 400

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(f"{error['path']}: {error['message']}" for error in errors))
        self.errors = errors


class SubmissionRaced(ActivityError):
    """An equal submission appeared and ended again and again, so none could be returned."""

    code = "submission_raced"


class OutputUnavailable(ActivityError):
    """The output exists, but the store that keeps it does not answer."""

    code = "output_unavailable"
    status = 503


class QuotaExceeded(ActivityError):
    """An agent asked for more than its run, its activity or its tree may have. `quota` names which."""

    code = "quota_exceeded"
    status = 429

    def __init__(self, quota: str, message: str) -> None:
        super().__init__(message)
        self.problem_members = {"quota": quota}


class ToolRefused(ActivityError):
    """The agent may not do this with what it names."""

    code = "tool_refused"
    status = 403


class KeyReused(ActivityError):
    """The Idempotency-Key was used before, for a different call of the same run."""

    code = "idempotency_key_reused"
    status = 422


class DecisionForbidden(ActivityError):
    """The item is not this caller's to decide."""

    code = "forbidden"
    status = 403


class PersonRequired(DecisionForbidden):
    """People decide this, each with one voice, and nobody stands behind the caller's token."""

    code = "person_required"


class MailboxError(ActivityError):
    """A mailbox cannot do what was asked."""

    code = "mailbox_error"


class OtherConsumer(MailboxError):
    """A mailbox is consumed in one way: by the agent that it names, or by anyone who takes from it."""

    code = "other_consumer"


class MailboxFull(MailboxError):
    """Too much waits in it already."""

    code = "mailbox_full"
    status = 429


class ItemRefused(MailboxError):
    """The item does not stand as this needs: only what has failed is tried again, only what waits or has failed is cancelled."""

    code = "item_refused"


class LeaseLost(MailboxError):
    """The batch is not its consumer's any more: its lease ran out and its items went back, or it ended otherwise."""

    code = "lease_lost"
