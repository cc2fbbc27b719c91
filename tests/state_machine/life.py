"""The statuses as the documents tell them, written by hand: the test's own idea of the state machine, not the engine's."""

from __future__ import annotations

#: Status, then what happens, then the status after it. What is not here is refused.
LIFE: dict[str, dict[str, str]] = {
    "created": {
        "is claimed": "in_progress",
        "is taken up": "in_progress",
        "is completed": "done",
        "is agreed to": "approved",
        "is refused": "rejected",
        "is held": "awaiting_review",
        "is handed on": "reassigned",
        "is cancelled": "cancelled",
    },
    "in_progress": {
        "has a result": "done",
        "has a draft": "awaiting_approval",
        "is handed back": "created",
        "fails for good": "failed",
        "is blocked": "blocked",
        "waits for a part": "awaiting_subtask",
        "waits for an answer": "awaiting_review",
        "is completed": "done",
        "is agreed to": "approved",
        "is refused": "rejected",
        "is handed on": "reassigned",
        "is cancelled": "cancelled",
    },
    "awaiting_approval": {"is agreed to": "approved", "is refused": "rejected", "is cancelled": "cancelled"},
    "awaiting_subtask": {
        "is woken": "created",
        "is stopped": "needs_review",
        "is handed on": "reassigned",
        "is cancelled": "cancelled",
    },
    "awaiting_review": {
        "is woken": "created",
        "is stopped": "needs_review",
        "is handed on": "reassigned",
        "is cancelled": "cancelled",
    },
    "blocked": {
        "is woken": "created",
        "is stopped": "needs_review",
        "is handed on": "reassigned",
        "is cancelled": "cancelled",
    },
    "failed": {
        "is told of": "needs_review",
        "is tried again": "created",
        "is handed on": "reassigned",
        "is cancelled": "cancelled",
    },
    "needs_review": {
        "is tried again": "created",
        "is handed on": "reassigned",
        "is cancelled": "cancelled",
    },
    "done": {},
    "approved": {},
    "rejected": {},
    "reassigned": {},
    "cancelled": {},
}

ENDED = {status for status, verbs in LIFE.items() if not verbs}
#: A pipeline goes on from these, and anyone who waits is told.
SETTLED = ENDED | {"failed", "needs_review"}
LIVE = set(LIFE) - SETTLED
#: It waits for its turn, or for somebody or something.
MAY_BE_RESCHEDULED = LIVE - {"in_progress"}
#: A person may still answer.
OPEN = {"created", "in_progress"}
FAILED = {"failed", "needs_review"}
#: An agent's work in one of these comes to a run that hears of an answer.
HEARS = {"created", "in_progress", "blocked", "awaiting_subtask", "awaiting_review"}

#: What ends which waiting.
WAITS_FOR = {"subtask": "awaiting_subtask", "resolution": "blocked", "review": "awaiting_review"}
#: Takes the place of its parent.
SUCCESSORS = {"revision_of", "reassigned_from"}
#: Is about its parent, and of no use without it.
DEPENDENTS = {"gate", "review", "resolution", "escalation", "subtask"}
#: Belongs to a pipeline without being one of its steps.
ASIDE = {"gate", "approval", "resolution", "review", "escalation", "subtask"}


class Refused(Exception):
    """The model says that this cannot be done now."""
