"""How the console calls things: kinds of questions, actors, verbs of the history, priorities."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from activities.states import BANDS, LinkKind, Status
from pipelines.diagram import LOOKS

#: What people are asked for, in the order of the page: one, and many.
KINDS: Mapping[str, tuple[str, str]] = {
    "gate": ("Gate", "Gates"),
    "approval": ("Approval", "Approvals"),
    "review": ("Review", "Reviews"),
    "resolution": ("Blocker", "Blockers"),
    "task": ("Task", "Tasks"),
    "escalation": ("Escalation", "Escalations"),
}
#: These are named after what they are to their parent; the others are gates or tasks.
NAMED_BY_LINK = (LinkKind.APPROVAL, LinkKind.REVIEW, LinkKind.RESOLUTION, LinkKind.ESCALATION)

#: Parts of the system that act, as `actor` records them.
_SYSTEM = {
    "engine": "the engine",
    "pipeline": "the pipeline",
    "worker": "a worker",
    "recovery": "recovery",
    "deadline": "the deadline",
}
#: What an actor did, to be followed by the name of what it was done to.
_VERBS = {
    "submit": "asked",
    "claim": "claimed",
    "start": "started",
    "complete": "completed",
    "request_approval": "finished and asks to approve",
    "release": "returned to the queue",
    "fail": "failed",
    "escalate": "escalated",
    "block": "reported a blocker",
    "await_subtask": "waits for a subtask",
    "await_review": "asked for a review",
    "reassign": "handed on",
    "wake": "woke",
    "hold": "held back",
    "trip": "stopped",
    "take_up": "took up",
    "finish": "completed",
    "approve": "approved",
    "reject": "sent back",
    "approve_gate": "approved",
    "reject_gate": "sent back",
    "retry": "tried again",
    "cancel": "withdrew",
    "reschedule": "rescheduled",
    "run_now": "had it run past pauses",
}
#: How an item has ended, or stands.
_OUTCOMES = {
    Status.APPROVED: "Approved",
    Status.REJECTED: "Sent back",
    Status.DONE: "Completed",
    Status.CANCELLED: "Withdrawn",
    Status.REASSIGNED: "Handed on",
    Status.IN_PROGRESS: "Taken up",
}


def kind_of(link_kind: str | None, *, is_approval_gate: bool) -> str:
    """One of `KINDS`."""
    if link_kind in NAMED_BY_LINK:
        return str(link_kind)
    return "gate" if is_approval_gate else "task"


def name_actor(actor: str | None) -> str:
    """An actor of the history as people call it. What a token calls itself is told from a person's name."""
    kind, _, name = (actor or "").partition(":")
    if kind == "user" and name:
        return name
    if kind == "token" and name:
        return f"{name} (token)"
    if kind == "run":
        return "its agent"
    return _SYSTEM.get(actor or "", actor or "somebody")


def did(verb: str) -> str:
    """A verb of the history, in the past."""
    return _VERBS.get(verb, verb.replace("_", " "))


def outcome(status: str) -> str:
    """What an item has come to, to be followed by who did it."""
    return _OUTCOMES.get(Status(status), "Changed")


def band(priority: int) -> str:
    """The band of a priority; one in between belongs to the more urgent band."""
    return max((start, name) for name, start in BANDS.items() if start <= max(1, priority))[1]


def dollars(amount: Decimal) -> str:
    return f"${amount:.2f}" if amount >= 1 or not amount else f"${amount:.4f}"


def cost_in(usage: Any) -> Decimal:
    """What a run has cost, by its agent's own account; 0 when it gives none."""
    try:
        found = Decimal(str((usage or {}).get("cost_usd") or 0))
    except (InvalidOperation, AttributeError):
        return Decimal(0)
    return found if found.is_finite() and found > 0 else Decimal(0)


# States as people read them: a word, and the tone that pictures of pipelines have for it.


#: How a queue stands whose work something holds, by the cause.
HELD_BY: Mapping[str, str] = {
    "budget": "held: budget",
    "provider": "held: provider",
    "paused": "paused",
}
#: States of what is no step of a pipeline. Whatever is named nowhere is at rest.
_TONES = {
    "good": ("completed", "delivered", "served", "ok", "healthy", "succeeded", "success", "sent", "replayed", "active",
             "woken", "answered", "all is well"),
    "bad": ("lost", "stalled", "no worker", "open", "exceeded", "timed_out", "unreachable",
            "partially_failed", "overdue", "exhausted", "refused", "failures", "silent"),
    "ask": ("paused", "held: budget", "held: provider", "warning", "waiting", "queued", "partial", "dropped", "needs somebody",
            "shutting down", "takes nothing new"),
    "live": ("running", "accepted", "sending", "working", "expanding", "enqueued", "taken"),
}  # fmt: skip
_TONE_OF = {state: tone for tone, states in _TONES.items() for state in states}


def tone_of(state: str) -> str:
    """`good`, `bad`, `ask`, `live`, `idle` or `off`: classes of the style sheet."""
    known = LOOKS.get(str(state))
    return known[0] if known else _TONE_OF.get(str(state), "off")


def words_of(state: str) -> str:
    return str(state).replace("_", " ")


# Times as people say them.


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def in_words(seconds: float) -> str:
    """The two largest units: `3 d 4 h`, `12 min`, `8 s`. Less than a second is `now`."""
    left, words = int(seconds), []
    for size, name in _UNITS:
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {name}")
        elif words:
            break
    return " ".join(words[:2]) or "now"


def from_now(passed: float) -> str:
    """How far a moment is away, whose seconds have passed; fewer than none lie ahead: `4 min ago`, `in 2 h`, `now`."""
    words = in_words(abs(passed))
    if words == "now":
        return words
    return f"in {words}" if passed < 0 else f"{words} ago"
