"""Labels of the console: kinds of questions, actors, verbs of the history, priorities, states and durations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from activities.selectors import NAMED_BY_LINK
from activities.states import BANDS, Status
from pipelines.diagram import STATUS_STYLES

#: Kinds of inbox items, in the order of the page: singular and plural.
KINDS: Mapping[str, tuple[str, str]] = {
    "gate": ("Gate", "Gates"),
    "approval": ("Approval", "Approvals"),
    "review": ("Review", "Reviews"),
    "resolution": ("Blocker", "Blockers"),
    "task": ("Task", "Tasks"),
    "escalation": ("Escalation", "Escalations"),
}

#: Labels for the values of `actor` that are parts of the system.
_SYSTEM = {
    "engine": "the engine",
    "pipeline": "the pipeline",
    "worker": "a worker",
    "recovery": "recovery",
    "deadline": "the deadline",
}
#: Verbs of the history in the past tense. The page puts the actor before them and the object after them.
_VERBS = {
    "submit": "submitted",
    "claim": "claimed",
    "start": "started",
    "complete": "completed",
    "request_approval": "finished and requested approval",
    "release": "returned to the queue",
    "fail": "failed",
    "escalate": "escalated",
    "block": "reported a blocker",
    "await_subtask": "requested a subtask",
    "await_review": "requested a review",
    "reassign": "reassigned",
    "wake": "woke",
    "hold": "put on hold",
    "trip": "stopped",
    "take_up": "claimed",
    "finish": "completed",
    "approve": "approved",
    "reject": "requested changes",
    "approve_gate": "approved",
    "reject_gate": "requested changes",
    "retry": "retried",
    "cancel": "cancelled",
    "reschedule": "rescheduled",
    "run_now": "started despite pauses",
    "vote": "voted",
}
CHANGED = "Changed"
#: Labels for the outcome or status of an item.
_OUTCOMES = {
    Status.APPROVED: "Approved",
    Status.REJECTED: "Changes requested",
    Status.DONE: "Completed",
    Status.CANCELLED: "Cancelled",
    Status.REASSIGNED: "Reassigned",
    Status.IN_PROGRESS: "Claimed",
}


def kind_of(link_kind: str | None, *, is_approval_gate: bool) -> str:
    """Return the item's key in `KINDS`."""
    if link_kind in NAMED_BY_LINK:
        return str(link_kind)
    return "gate" if is_approval_gate else "task"


def name_actor(actor: str | None) -> str:
    """Return an actor of the history as pages display it. The suffix tells a token from a person of the same name."""
    kind, _, name = (actor or "").partition(":")
    if kind == "user" and name:
        return name
    if kind == "token" and name:
        return f"{name} (token)"
    if kind == "run":
        return "its agent"
    return _SYSTEM.get(actor or "", actor or "somebody")


def past_tense(verb: str) -> str:
    """Return a verb of the history in the past tense."""
    return _VERBS.get(verb, verb.replace("_", " "))


def outcome_label(status: str) -> str:
    """Return the label for an item's status. The page adds "by" and the actor."""
    return _OUTCOMES.get(Status(status), CHANGED)


def band(priority: int) -> str:
    """Return the priority's band. A value between two bands belongs to the more urgent one."""
    return max((start, name) for name, start in BANDS.items() if start <= max(1, priority))[1]


def priority_in_words(priority: int) -> str:
    return f"{band(priority)} ({priority})"


def dollars(amount: Decimal) -> str:
    return f"${amount:.2f}" if amount >= 1 or not amount else f"${amount:.4f}"


def cost_in(usage: Any) -> Decimal:
    """Return the cost of a run as its agent reported it; 0 if it reported none."""
    try:
        cost = Decimal(str((usage or {}).get("cost_usd") or 0))
    except (InvalidOperation, AttributeError):
        return Decimal(0)
    return cost if cost.is_finite() and cost > 0 else Decimal(0)


def tokens_in(usage: Any) -> tuple[int, int]:
    """Return the input and output tokens of a run as its agent reported them; 0 for a number that is missing."""
    counts = ((usage or {}).get(name) for name in ("input_tokens", "output_tokens"))
    read, written = (count if isinstance(count, int) else 0 for count in counts)
    return read, written


def text_of_event(detail: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first of these members of an event that is a text; empty if there is none."""
    return next((detail[name] for name in names if isinstance(detail.get(name), str) and detail[name]), "")


# States: a label, and the tone that pipeline pictures use for it.


#: State of a queue whose work is on hold, by the cause.
HELD_BY: Mapping[str, str] = {"budget": "held: budget", "provider": "held: provider", "paused": "paused"}
#: Tones of states that no pipeline step has. States that are not listed get the tone `off`.
_TONES = {
    "good": ("completed", "delivered", "served", "ok", "healthy", "succeeded", "success", "sent", "replayed", "active",
             "woken", "answered", "all is well"),
    "bad": ("lost", "stalled", "no worker", "open", "exceeded", "timed_out", "unreachable",
            "partially_failed", "overdue", "exhausted", "refused", "failures", "silent"),
    "ask": ("paused", "held: budget", "held: provider", "warning", "waiting", "queued", "partial", "dropped", "needs attention",
            "shutting down", "intake closed"),
    "live": ("running", "accepted", "sending", "working", "expanding", "enqueued", "taken"),
}  # fmt: skip
_TONE_OF = {state: tone for tone, states in _TONES.items() for state in states}


def tone_of(state: str) -> str:
    """Return `good`, `bad`, `ask`, `live`, `idle` or `off`: classes of the style sheet."""
    known = STATUS_STYLES.get(str(state))
    return known[0] if known else _TONE_OF.get(str(state), "off")


#: States whose label is the word of the button, which the API calls otherwise.
_WORDS = {"replayed": "retried"}


def words_of(state: str) -> str:
    return _WORDS.get(str(state), str(state).replace("_", " "))


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def in_words(seconds: float) -> str:
    """Return the two largest units: `3 d 4 h`, `12 min`, `8 s`. Less than a second is `now`."""
    rest, words = int(seconds), []
    for size, name in _UNITS:
        count, rest = divmod(rest, size)
        if count:
            words.append(f"{count} {name}")
        elif words:
            break
    return " ".join(words[:2]) or "now"


def from_now(passed: float) -> str:
    """Return `4 min ago`, `in 2 h` or `now`. A negative number of seconds lies in the future."""
    words = in_words(abs(passed))
    if words == "now":
        return words
    return f"in {words}" if passed < 0 else f"{words} ago"
