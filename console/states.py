"""States as people read them: a word, and the tone that pictures of pipelines have for it."""

from __future__ import annotations

from pipelines.looks import LOOKS

#: States of what is no step of a pipeline. Whatever is named nowhere is at rest.
_TONES = {
    "good": ("completed", "delivered", "served", "ok", "healthy", "succeeded", "success", "sent", "replayed", "active",
             "woken", "answered"),
    "bad": ("lost", "stalled", "no worker", "open", "exceeded", "timed_out", "unreachable",
            "partially_failed", "overdue", "exhausted", "refused"),
    "ask": ("paused", "warning", "waiting", "queued", "partial", "dropped"),
    "live": ("running", "accepted", "sending", "working", "expanding", "enqueued", "taken"),
}  # fmt: skip
_TONE_OF = {state: tone for tone, states in _TONES.items() for state in states}


def tone_of(state: str) -> str:
    """`good`, `bad`, `ask`, `live`, `idle` or `off`: classes of the style sheet."""
    known = LOOKS.get(str(state))
    return known[0] if known else _TONE_OF.get(str(state), "off")


def words_of(state: str) -> str:
    return str(state).replace("_", " ")
