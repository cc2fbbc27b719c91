"""What an activity spent its time with: stretches of waiting, of agents at work, and of people, each with its reason.

Made of the history alone, so it says the same as the timeline of the API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from activities.selectors import Moment
from activities.states import SETTLED, Status
from console.labels import did, named

#: Who has it in a status: lane, tone, and what it does there.
_LANES: dict[str, tuple[str, str, str]] = {
    Status.CREATED: ("waits", "idle", "Waits for its turn"),
    Status.ASSIGNED: ("agent", "live", "Its agent is started"),
    Status.IN_PROGRESS: ("agent", "live", "Its agent works"),
    Status.AWAITING_APPROVAL: ("people", "ask", "Waits for an approval"),
    Status.AWAITING_REVIEW: ("people", "ask", "Waits for a review"),
    Status.BLOCKED: ("people", "bad", "Blocked"),
    Status.AWAITING_SUBTASK: ("waits", "ask", "Waits for a subtask"),
    Status.FAILED: ("people", "bad", "Failed"),
    Status.NEEDS_REVIEW: ("people", "bad", "Needs an operator"),
}
_OF_PEOPLE = {
    Status.CREATED: ("people", "ask", "Waits for a person"),
    Status.IN_PROGRESS: ("people", "live", "A person works"),
}
_REASONS = ("reason", "message", "notes", "note", "question", "code")
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of time. `ends` of the last one is now, as long as the activity goes on."""

    lane: str
    tone: str
    begins: datetime
    ends: datetime
    words: str
    why: str
    goes_on: bool = False

    @property
    def lasted(self) -> timedelta:
        return self.ends - self.begins


def segments(
    moments: Iterable[Moment], *, by_person: bool, now: datetime, reason_now: str = ""
) -> list[Segment]:
    """The stretches in their order. What follows upon each other in the same lane for the same purpose is one."""
    steps = [moment for moment in moments if moment.kind == "transition"]
    found: list[Segment] = []
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        status = step.facts["target"]
        if status in SETTLED and (following is None or status not in (Status.FAILED, Status.NEEDS_REVIEW)):
            continue
        lane = _lane(status, by_person=by_person)
        why = reason_now if following is None and reason_now else _why(step)
        ends = following.at if following else max(now, step.at)
        made = Segment(*lane[:2], step.at, ends, lane[2], why, following is None)
        found = _joined(found, made)
    return found


def _lane(status: str, *, by_person: bool) -> tuple[str, str, str]:
    known = (_OF_PEOPLE if by_person else {}).get(Status(status)) or _LANES.get(status)
    return known or ("waits", "off", status.replace("_", " "))


def _joined(found: list[Segment], made: Segment) -> list[Segment]:
    """Starting the agent and its work are one stretch to people."""
    last = found[-1] if found else None
    if last is None or (last.lane, last.tone) != (made.lane, made.tone) or made.lane != "agent":
        return [*found, made]
    whole = Segment(
        made.lane, made.tone, last.begins, made.ends, made.words, last.why or made.why, made.goes_on
    )
    return [*found[:-1], whole]


def _why(step: Moment) -> str:
    detail: Mapping[str, Any] = step.facts["detail"]
    said = next((detail[name] for name in _REASONS if isinstance(detail.get(name), str) and detail[name]), "")
    verb = step.facts["verb"]
    by = f"{named(step.facts['actor'])} {'submitted it' if verb == 'submit' else did(verb)}"
    return f"{by}: {said}"[:LONGEST_REASON] if said else by
