"""The statuses as the documents describe them, written by hand and independent of the engine's state table."""

from __future__ import annotations

#: The next status for each status and event. Other events are refused.
LIFE: dict[str, dict[str, str]] = {
    "created": {
        "is claimed": "in_progress",
        "is claimed by a person": "in_progress",
        "is completed": "done",
        "is approved": "approved",
        "is rejected": "rejected",
        "is held": "awaiting_review",
        "is reassigned": "reassigned",
        "is cancelled": "cancelled",
    },
    "in_progress": {
        "has a result": "done",
        "has a draft": "awaiting_approval",
        "is requeued": "created",
        "fails permanently": "failed",
        "is blocked": "blocked",
        "waits for a subtask": "awaiting_subtask",
        "waits for an answer": "awaiting_review",
        "is completed": "done",
        "is approved": "approved",
        "is rejected": "rejected",
        "is reassigned": "reassigned",
        "is cancelled": "cancelled",
    },
    "awaiting_approval": {"is approved": "approved", "is rejected": "rejected", "is cancelled": "cancelled"},
    "awaiting_subtask": {
        "is woken": "created",
        "is stopped": "needs_review",
        "is reassigned": "reassigned",
        "is cancelled": "cancelled",
    },
    "awaiting_review": {
        "is woken": "created",
        "is stopped": "needs_review",
        "is reassigned": "reassigned",
        "is cancelled": "cancelled",
    },
    "blocked": {
        "is woken": "created",
        "is stopped": "needs_review",
        "is reassigned": "reassigned",
        "is cancelled": "cancelled",
    },
    "failed": {
        "is reported": "needs_review",
        "is retried": "created",
        "is reassigned": "reassigned",
        "is cancelled": "cancelled",
    },
    "needs_review": {
        "is retried": "created",
        "is reassigned": "reassigned",
        "is cancelled": "cancelled",
    },
    "done": {},
    "approved": {},
    "rejected": {},
    "reassigned": {},
    "cancelled": {},
}

ENDED = {status for status, verbs in LIFE.items() if not verbs}
#: Pipelines continue after these, and waiting parents wake.
SETTLED = ENDED | {"failed", "needs_review"}
LIVE = set(LIFE) - SETTLED
#: The task waits for its turn, or for somebody or something.
MAY_BE_RESCHEDULED = LIVE - {"in_progress"}
#: A person may still answer.
OPEN = {"created", "in_progress"}
FAILED = {"failed", "needs_review"}
#: In these, an agent's task will have another run, which gets the answers.
GETS_ANSWERS = {"created", "in_progress", "blocked", "awaiting_subtask", "awaiting_review"}

#: The status in which a task waits for a child of this kind.
WAITS_FOR = {"subtask": "awaiting_subtask", "resolution": "blocked", "review": "awaiting_review"}
#: Kinds of children that replace their parent.
SUCCESSORS = {"revision_of", "reassigned_from"}
#: Kinds of children that end with their parent.
DEPENDENTS = {"gate", "review", "resolution", "escalation", "subtask"}
#: Kinds of tasks that belong to a pipeline without being one of its steps.
ASIDE = {"gate", "approval", "resolution", "review", "escalation", "subtask"}


class Refused(Exception):
    """The model refuses the action in its current state."""
