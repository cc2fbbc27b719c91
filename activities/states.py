"""The state machine of an activity: one table, from which constraints, diagram and API are derived.

Each verb is a transition from one of its source statuses to its target status. Nothing else changes a status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Each status is documented by how it is left."""

    CREATED = "created"  # A worker or a person claims it.
    ASSIGNED = "assigned"  # The worker that claimed it starts the agent, or recovery requeues it.
    IN_PROGRESS = "in_progress"  # The agent answers, asks, fails or is lost; a person completes or decides.
    AWAITING_APPROVAL = "awaiting_approval"  # A person decides the gate.
    AWAITING_SUBTASK = "awaiting_subtask"  # The subtask ends, with or without success.
    AWAITING_REVIEW = "awaiting_review"  # A person answers the review.
    BLOCKED = "blocked"  # A person resolves the blocker.
    DONE = "done"  # Final.
    APPROVED = "approved"  # Final.
    REJECTED = "rejected"  # Final; a revision takes its place.
    REASSIGNED = "reassigned"  # Final; a successor takes its place.
    FAILED = "failed"  # Escalated to needs_review, or retried or reassigned by an operator.
    NEEDS_REVIEW = "needs_review"  # An operator retries, reassigns or cancels it.
    CANCELLED = "cancelled"  # Final.


class LinkKind(StrEnum):
    """The relation of an activity to its parent."""

    GATE = "gate"
    APPROVAL = "approval"
    SUBTASK = "subtask"
    RESOLUTION = "resolution"
    REVIEW = "review"
    ESCALATION = "escalation"
    REVISION_OF = "revision_of"
    REASSIGNED_FROM = "reassigned_from"


@dataclass(frozen=True, slots=True)
class StatusSpec:
    """How a status is displayed, on every page, in every diagram and in the API."""

    words: str
    tone: str  # "bad", "ask", "live", "idle", "good" or "off", most important first
    glyph: str  # of pipelines.diagram.GLYPHS
    sentence: str = ""  # what it waits for, or how it has ended; empty if the status alone does not tell
    lane: str = ""  # of the timeline: "waits", "agent" or "people"; empty for final statuses
    stretch: str = ""  # the label for time spent in this status
    ended_by: LinkKind | None = None  # the kind of child that it waits for


STATUSES: Mapping[str, StatusSpec] = {
    Status.CREATED: StatusSpec("Queued", "idle", "dots", "", "waits", "Waits for its turn"),
    Status.ASSIGNED: StatusSpec("Starting", "live", "dots", "", "agent", "Its agent is started"),
    Status.IN_PROGRESS: StatusSpec("Running", "live", "play", "", "agent", "Its agent works"),
    Status.AWAITING_APPROVAL: StatusSpec(
        "Needs approval", "ask", "pause", "It waits for a decision about the result.",
        "people", "Waits for an approval", LinkKind.GATE,
    ),
    Status.AWAITING_SUBTASK: StatusSpec(
        "Awaits a subtask", "ask", "dots", "The subtask must end first.", "waits", "Waits for a subtask", LinkKind.SUBTASK,
    ),
    Status.AWAITING_REVIEW: StatusSpec(
        "Needs a review", "ask", "pause", "It waits for a review by a person.", "people", "Waits for a review", LinkKind.REVIEW,
    ),
    Status.BLOCKED: StatusSpec(
        "Blocked", "ask", "bar", "It waits until a person resolves the blocker.", "people", "Blocked", LinkKind.RESOLUTION,
    ),
    Status.DONE: StatusSpec("Done", "good", "check", "It is done."),
    Status.APPROVED: StatusSpec("Approved", "good", "check", "It was approved."),
    Status.REJECTED: StatusSpec("Rejected", "bad", "back", "It was rejected."),
    Status.REASSIGNED: StatusSpec("Reassigned", "off", "skip", "It was reassigned; another activity took its place."),
    Status.FAILED: StatusSpec(
        "Failed", "bad", "cross", "It has failed. An operator can retry it.", "people", "Failed",
    ),
    Status.NEEDS_REVIEW: StatusSpec(
        "Needs an operator", "bad", "bang", "It has failed permanently: an operator must retry or cancel it.",
        "people", "Needs an operator",
    ),
    Status.CANCELLED: StatusSpec("Cancelled", "off", "slash", "It was cancelled."),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Transition:
    sources: frozenset[Status]
    target: Status


def _from(*sources: Status, to: Status) -> Transition:
    return Transition(frozenset(sources), to)


_S = Status

TRANSITIONS: dict[str, Transition] = {
    # Runs of agents.
    "claim": _from(_S.CREATED, to=_S.ASSIGNED),
    "start": _from(_S.ASSIGNED, to=_S.IN_PROGRESS),
    "complete": _from(_S.IN_PROGRESS, to=_S.DONE),
    "request_approval": _from(_S.IN_PROGRESS, to=_S.AWAITING_APPROVAL),
    "release": _from(_S.ASSIGNED, _S.IN_PROGRESS, to=_S.CREATED),
    "fail": _from(_S.ASSIGNED, _S.IN_PROGRESS, to=_S.FAILED),
    "escalate": _from(_S.FAILED, to=_S.NEEDS_REVIEW),
    # Requests of a running agent, and their answers.
    "block": _from(_S.IN_PROGRESS, to=_S.BLOCKED),
    "await_subtask": _from(_S.IN_PROGRESS, to=_S.AWAITING_SUBTASK),
    "await_review": _from(_S.IN_PROGRESS, to=_S.AWAITING_REVIEW),
    "reassign": _from(
        _S.CREATED, _S.ASSIGNED, _S.IN_PROGRESS, _S.BLOCKED, _S.AWAITING_SUBTASK, _S.AWAITING_REVIEW,
        _S.FAILED, _S.NEEDS_REVIEW, to=_S.REASSIGNED,
    ),
    "wake": _from(_S.BLOCKED, _S.AWAITING_SUBTASK, _S.AWAITING_REVIEW, to=_S.CREATED),
    # The engine holds it for an open approval, or stops it after repeated wakes without progress.
    "hold": _from(_S.CREATED, to=_S.AWAITING_REVIEW),
    "trip": _from(
        _S.CREATED, _S.ASSIGNED, _S.IN_PROGRESS, _S.BLOCKED, _S.AWAITING_SUBTASK, _S.AWAITING_REVIEW, to=_S.NEEDS_REVIEW,
    ),
    # Work and decisions of people.
    "take_up": _from(_S.CREATED, to=_S.IN_PROGRESS),
    "finish": _from(_S.CREATED, _S.IN_PROGRESS, to=_S.DONE),
    "approve": _from(_S.AWAITING_APPROVAL, to=_S.APPROVED),
    "reject": _from(_S.AWAITING_APPROVAL, to=_S.REJECTED),
    "approve_gate": _from(_S.CREATED, _S.IN_PROGRESS, to=_S.APPROVED),
    "reject_gate": _from(_S.CREATED, _S.IN_PROGRESS, to=_S.REJECTED),
    # Operators.
    "retry": _from(_S.FAILED, _S.NEEDS_REVIEW, to=_S.CREATED),
    "cancel": _from(
        _S.CREATED, _S.ASSIGNED, _S.IN_PROGRESS, _S.AWAITING_APPROVAL, _S.AWAITING_SUBTASK, _S.AWAITING_REVIEW,
        _S.BLOCKED, _S.FAILED, _S.NEEDS_REVIEW, to=_S.CANCELLED,
    ),
}  # fmt: skip


def sources_of(verb: str) -> list[str]:
    return sorted(TRANSITIONS[verb].sources)


def target_of(verb: str) -> str:
    return TRANSITIONS[verb].target.value


def verbs_from(status: str) -> list[str]:
    return [verb for verb, step in TRANSITIONS.items() if status in step.sources]


def pairs() -> set[tuple[str, str]]:
    """Return every allowed pair (from, to) of statuses, for the guard in the database."""
    return {(source.value, step.target.value) for step in TRANSITIONS.values() for source in step.sources}


def _values(statuses: Iterable[Status]) -> frozenset[str]:
    return frozenset(status.value for status in statuses)


#: No verb leaves these.
FINAL = _values(s for s in Status if not any(s in step.sources for step in TRANSITIONS.values()))
#: When an activity reaches one of these, its pipeline continues or fails.
SETTLED = FINAL | _values([_S.FAILED, _S.NEEDS_REVIEW])
#: A worker has it, or an agent has accepted it.
RUNNING = _values([_S.ASSIGNED, _S.IN_PROGRESS])
#: It waits for people or other work, and holds no worker and no slot.
WAITING = _values(s for s in Status if STATUSES[s].ended_by)
#: `expires_at` cancels it: it has not started, or could not continue after the answer that it waits for.
EXPIRING = _values([_S.CREATED]) | WAITING - _values([_S.AWAITING_APPROVAL])
#: At most one activity per dedup key has one of these.
LIVE = _values(Status) - SETTLED
#: The status as indexes store it (`Activity.indexed_status`). The statuses that change with each run share one value, so that a claim
#: changes no indexed column, and PostgreSQL need not write to any index.
OPEN = "open"
INDEXED = {status.value: OPEN if status in (_S.CREATED, *RUNNING) else status.value for status in Status}
#: An agent's activity in one of these will run again, and its next run receives the answers of people.
WILL_RUN = LIVE - _values([_S.AWAITING_APPROVAL])
#: It runs again only if an operator retries it.
MAY_RUN = SETTLED - FINAL

#: Actions that do not change the status, and the statuses in which they are possible. Each is an event in the history, from the status to
#: itself, and raises the version.
REMARKS: dict[str, frozenset[str]] = {
    # While an agent works on it, only a bulk job or its due time sets its priority, and once it has failed only its due time. The priority
    # applies when it waits again.
    "reschedule": LIVE | MAY_RUN,
    "run_now": _values([_S.CREATED]),
    # A vote that does not decide yet.
    "vote": _values([_S.IN_PROGRESS]),
}


class RunStatus(StrEnum):
    """An agent's work on an activity, from a claim to its end."""

    RUNNING = "running"  # A worker waits for the agent, or the agent accepted and will call back.
    COMPLETED = "completed"  # Its result was accepted, or a tool of its agent ended it.
    FAILED = "failed"  # The agent failed, refused or ran out of time.
    STALLED = "stalled"  # Its worker or agent has stopped sending heartbeats; another run takes over.
    CANCELLED = "cancelled"  # The work was cancelled or reassigned.


class WakeReason(StrEnum):
    """Why an agent is started. Its section of the prompt is `templates/prompts/<reason>.md`."""

    NEW_TASK = "new_task"
    REJECTION = "rejection"
    SCHEDULED = "scheduled"
    UNBLOCKED = "unblocked"
    SUBTASK_COMPLETED = "subtask_completed"
    REVIEW_APPROVED = "review_approved"
    REVIEW_FEEDBACK = "review_feedback"
    MESSAGE = "message"

    @property
    def ends(self) -> Status | None:
        """The status in which an activity waits for this reason; None if the reason answers nothing."""
        return _ENDED_WAITS.get(self)


_ENDED_WAITS = {
    WakeReason.UNBLOCKED: Status.BLOCKED,
    WakeReason.SUBTASK_COMPLETED: Status.AWAITING_SUBTASK,
    WakeReason.REVIEW_APPROVED: Status.AWAITING_REVIEW,
    WakeReason.REVIEW_FEEDBACK: Status.AWAITING_REVIEW,
}


class WakeState(StrEnum):
    PENDING = "pending"  # The next run takes it.
    TAKEN = "taken"  # A run carries it until the run ends. A failed or lost run returns it.
    CONSUMED = "consumed"  # No run takes it: the activity has ended, or it merged into an equal pending one.


#: Named bands of the one priority scale, 1..20, lower first.
BANDS = {"urgent": 1, "gated": 5, "normal": 10, "background": 20}


# The database's copy of the state table: a trigger that refuses undeclared changes of status, and maintains `indexed_status`.
#
# Code changes a status only through `transitions`; the trigger guards against everything else, such as a shell or a future bug.

_TABLE = "activities_activity"


def install_status_guard() -> list[str]:
    """Return the statements that create the triggers from `TRANSITIONS`. A migration must run them whenever the table changes."""
    allowed = ", ".join(f"'{source}>{target}'" for source, target in sorted(pairs()))
    is_open = ", ".join(f"'{status}'" for status, indexed in INDEXED.items() if indexed == OPEN)
    index = f"NEW.indexed_status := CASE WHEN NEW.status IN ({is_open}) THEN '{OPEN}' ELSE NEW.status END;"
    return [
        f"""CREATE OR REPLACE FUNCTION {_TABLE}_status_guard() RETURNS trigger LANGUAGE plpgsql AS $guard$
        BEGIN
            IF (OLD.status || '>' || NEW.status) NOT IN ({allowed}) THEN
                RAISE EXCEPTION 'activity % may not go from % to %', OLD.id, OLD.status, NEW.status
                    USING ERRCODE = 'check_violation';
            END IF;
            {index}
            RETURN NEW;
        END $guard$""",
        f"""CREATE OR REPLACE TRIGGER status_guard BEFORE UPDATE OF status ON {_TABLE}
        FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION {_TABLE}_status_guard()""",
        f"""CREATE OR REPLACE FUNCTION {_TABLE}_status_indexed() RETURNS trigger LANGUAGE plpgsql AS $index$
        BEGIN
            {index}
            RETURN NEW;
        END $index$""",
        # The column's default is right for `created`, which is the only status that the application inserts.
        f"""CREATE OR REPLACE TRIGGER status_indexed BEFORE INSERT ON {_TABLE}
        FOR EACH ROW WHEN (NEW.status <> '{Status.CREATED}' OR NEW.indexed_status <> '{OPEN}')
        EXECUTE FUNCTION {_TABLE}_status_indexed()""",
    ]
