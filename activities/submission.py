"""Submission: creates activities, and offers them to admission after the commit.

An item whose dedup key belongs to a live activity, or whose pipeline step already has its activity, creates nothing. The caller is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import UUID

from activities import backlog, relay, states, transitions
from activities.admission import Exchange
from activities.admission.exchange import Offer
from activities.decision_rules import DecisionRules
from activities.exceptions import ActivityError
from activities.models import Activity, Deadline
from activities.models.activity import in_status
from agents import configuration
from tenants import clock, request_context, wire_json
from tenants.context import APP
from tenants.current_tenant import required_tenant
from tenants.identifiers import uuid7
from tenants.sql import Array, JsonArray, Rows, Statement, load_parts

TRIES = 3  # An equal activity may end between the insert that it blocks and the query that looks for it.

_FOLDER = Path(__file__).parent / "sql"
_SUBMIT, _COUNT_REPEATED = (Statement.load(_FOLDER, name) for name in ("submit", "count_repeated"))


#: In `agent_options`: the role of the agent that wrote the task. It is kept when the work is reassigned or revised.
ASKED_BY = "asked_by"


@dataclass(frozen=True, slots=True)
class Beginning:
    """Common table expressions that go before a submission, in the same statement.

    They must define `begun` (id, round). Only the items in `begun` are created, in that round. Their
    parameters are lists, and their names must differ from those of `submit.sql`.
    """

    text: str
    parameters: Mapping[str, Array]


_OF_NEW_RUNS = Beginning("", {})


_WAITING = load_parts(_FOLDER, "submit_waiting")
_CLAIMED = load_parts(_FOLDER, "submit_claimed") | transitions.CLAIMED


@lru_cache(maxsize=16)
def _statement(beginning: str, *, is_claimed: bool = False) -> Statement:
    parts = {"beginning": "", "round": "round", "begun": ""}
    if beginning:
        parts = {
            "beginning": f"{beginning}, ",
            "round": "begun.round",
            "begun": "JOIN begun USING (id)",
        }
    return _SUBMIT.with_parts(parts | (_CLAIMED if is_claimed else _WAITING))


@dataclass(slots=True)
class Reservation:
    """The id for the next activity, for which admission holds a slot. `begun`: the items that began within the block."""

    next_id: UUID | None
    begun: list[NewActivity] = field(default_factory=list)
    _beginning: str = field(init=False)
    _rows: Rows = field(init=False)

    def note(self, items: Sequence[NewActivity], beginning: Beginning, rows: Rows) -> None:
        self.begun += items
        self._beginning, self._rows = beginning.text, rows

    def claim(self, parameters: Mapping[str, Any]) -> Rows | None:
        """Let the statement that creates the only item also claim it, with these parameters of `submit_claimed.sql`.

        Returns the rows of `claim.sql`; None if the statement was sent before, so that the claim needs one of its own.
        """
        statement = _statement(self._beginning, is_claimed=True)
        return self._rows if self._rows.replace(statement.text, parameters) else None


_reservation: ContextVar[Reservation | None] = ContextVar("reservation", default=None)


@contextmanager
def reserving(activity_id: UUID) -> Iterator[Reservation]:
    """Give this id to the first activity that is made within the block."""
    token = _reservation.set(reservation := Reservation(activity_id))
    try:
        yield reservation
    finally:
        _reservation.reset(token)


def _new_id() -> UUID:
    reservation = _reservation.get()
    if reservation is None or (reserved := reservation.next_id) is None:
        return uuid7()
    reservation.next_id = None
    return reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class NewActivity:
    """An activity to create: with `agent_role` for an agent, or `human_role` for a person."""

    name: str
    agent_role: str | None = None
    human_role: str | None = None
    description: str = ""
    is_approval_gate: bool = False
    requires_approval: bool = False
    priority: int = states.BANDS["normal"]
    params: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    input: Mapping[str, Any] | None = None
    input_ref: UUID | None = None
    parent_id: UUID | None = None
    link_kind: str | None = None
    deliverable_id: UUID | None = None
    pipeline_run_id: UUID | None = None
    pipeline_id: UUID | None = None
    period_id: UUID | None = None
    template: str | None = None
    step: str | None = None
    branch: int = 0
    round: int = 1
    schedule_id: UUID | None = None
    dedup_key: str | None = None
    group_key: str | None = None
    group_scope: str = "role"  # or "tenant": one group over all roles of the tenant
    files: Sequence[str] = ()  # normalised, sorted, without duplicates
    not_before: datetime | None = None
    expires_at: datetime | None = None
    due_at: datetime | None = None
    timeout_seconds: int | None = None
    retry: Mapping[str, Any] = field(default_factory=dict)
    max_attempts: int | None = None
    decision_rules: Mapping[str, Any] | None = None
    reviewer_notes: str | None = None
    wake_reason: str = states.WakeReason.NEW_TASK
    wake_payload: Mapping[str, Any] = field(default_factory=dict)
    wake_id: UUID = field(default_factory=uuid7)
    mailbox_id: UUID | None = None
    agent_options: Mapping[str, Any] = field(default_factory=dict)
    id: UUID = field(default_factory=_new_id)

    @property
    def assignee_type(self) -> str:
        return "agent" if self.agent_role else "human"


_COLUMNS = tuple(each.name for each in fields(NewActivity))


@dataclass(frozen=True, slots=True)
class Submitted:
    """The result for one item: its id, or the id of the live activity that it duplicates."""

    id: UUID
    created: bool


def child_of(parent: Any, kind: str, **fields: Any) -> NewActivity:
    """Return a child of `parent`, a row of Activity, in the same deliverable and pipeline run."""
    return NewActivity(
        parent_id=parent.id,
        link_kind=kind,
        deliverable_id=parent.deliverable_id,
        pipeline_run_id=parent.pipeline_run_id,
        pipeline_id=parent.pipeline_id,
        period_id=parent.period_id,
        schedule_id=parent.schedule_id,
        mailbox_id=parent.mailbox_id,
        **fields,
    )


def begin(items: Sequence[NewActivity], beginning: Beginning = _OF_NEW_RUNS, *, actor: str) -> None:
    """Create the activities of steps that begin: those that `beginning` lets begin, or all of them for runs that are created in the same
    transaction. A step that already has its activity gets no second one. The backlog's bound was checked before.

    The statement is sent together with the next one of the transaction, mostly its commit. Other steps that begin before that share it.
    """
    tenant_id = required_tenant()
    items = [_with_due_time(item) for item in items]
    parameters = {**beginning.parameters, **_parameters(tenant_id, items, actor)}
    rows = _statement(beginning.text).run_with_next(
        parameters, using=APP, lists=("rows", *beginning.parameters)
    )
    if any(map(_may_have_deadlines, items)):
        _plan_deadlines(tenant_id, items, _by_id(rows.fetch()))
    if (reservation := _reservation.get()) is not None:
        reservation.note(items, beginning, rows)
    relay.after_commit_of(lambda: Exchange(offers=_offers(tenant_id, items, _by_id(rows.fetch()))))


def submit(items: Sequence[NewActivity], *, actor: str, bounded: bool = True) -> list[Submitted]:
    """Create all items in one statement, in the caller's `tenant_scope`. Work for agents is offered after the commit.

    Raises `BacklogFull` if the backlog has no room for all of them. `bounded=False`: they have been admitted to the backlog before.
    """
    tenant_id = required_tenant()
    outcome = _find_repeated(tenant_id, items) if bounded else {}
    if bounded:
        # Only one of several new items with one key is created.
        new = {item.dedup_key or item.id: item for item in reversed(items) if item.id not in outcome}
        backlog.make_room(tenant_id, newcomers(new.values()))
    items = [_with_due_time(item) for item in items]
    created: dict[UUID, Any] = {}
    for _ in range(TRIES):
        created |= _insert(tenant_id, [item for item in items if item.id not in outcome], actor)
        outcome |= {item.id: Submitted(item.id, True) for item in items if item.id in created}
        outcome |= {
            item.id: Submitted(existing, False)
            for item in items
            if item.id not in outcome and (existing := _existing(tenant_id, item))
        }
        if len(outcome) == len(items):
            break
    else:
        raise ActivityError(
            "An equal activity began and ended at the same moment, again and again. Submit it again.",
            code="submission_raced",
        )
    _count_repeated(tenant_id, [item for item in items if item.dedup_key and item.id not in created])
    _plan_deadlines(tenant_id, items, created)
    if offers := _offers(tenant_id, items, created):
        relay.after_commit(Exchange(offers=offers))
    return [outcome[item.id] for item in items]


def _find_repeated(tenant_id: UUID, items: Sequence[NewActivity]) -> dict[UUID, Submitted]:
    """Return the items whose dedup key belongs to a live activity. They create nothing, so they need no room in the backlog."""
    keys = {item.dedup_key for item in items if item.dedup_key}
    if not keys:
        return {}
    live = Activity.objects.for_tenant(tenant_id).filter(in_status(*states.LIVE), dedup_key__in=keys)
    ids = dict(live.values_list("dedup_key", "id"))
    return {item.id: Submitted(ids[item.dedup_key], False) for item in items if item.dedup_key in ids}


def newcomers(items: Iterable[NewActivity]) -> list[backlog.Newcomer]:
    """Return the items for agents, as the backlog counts them."""
    return [
        backlog.Newcomer(item.agent_role, item.priority, item.schedule_id)
        for item in items
        if item.agent_role
    ]


def _insert(tenant_id: UUID, items: Sequence[NewActivity], actor: str) -> dict[UUID, Any]:
    """Insert the items. Returns rows (id, created_at, group_key) by id. A missing item collided with an existing activity."""
    if not items:
        return {}
    return _by_id(_statement("").run(_parameters(tenant_id, items, actor), using=APP))


def _parameters(tenant_id: UUID, items: Sequence[NewActivity], actor: str) -> dict[str, Any]:
    provenance = request_context.current() or None
    rows = (_row(tenant_id, item, provenance) for item in items)
    return {
        "tenant": tenant_id,
        "actor": actor,
        "rows": JsonArray(wire_json.dumps_stored(row, default=str) for row in rows),
    }


def _by_id(rows: Iterable[Any]) -> dict[UUID, Any]:
    return {row.id: row for row in rows}


def _count_repeated(tenant_id: UUID, items: Sequence[NewActivity]) -> None:
    """Count repeated submissions for the statistics, which reveal a caller that submits the same work again and again."""
    if not items:
        return
    counts = sorted(Counter(item.agent_role or "" for item in items).items())
    _COUNT_REPEATED.run(
        {
            "tenant": tenant_id,
            "ids": [uuid7() for _ in counts],
            "roles": [role for role, _ in counts],
            "counts": [count for _, count in counts],
        },
        using=APP,
    )


def _row(tenant_id: UUID, item: NewActivity, provenance: Mapping[str, Any] | None) -> dict[str, Any]:
    row = {name: getattr(item, name) for name in _COLUMNS}  # not `asdict`, which copies all parameters
    max_attempts = item.max_attempts or item.retry.get("max_attempts")
    return row | {
        "assignee_type": item.assignee_type,
        "max_attempts": max_attempts or configuration.attempts_of(tenant_id, item.agent_role),
        "wake_reason": item.wake_reason if item.agent_role else None,
        "provenance": provenance,
    }


def _with_due_time(item: NewActivity) -> NewActivity:
    if item.human_role is None or item.decision_rules is None or item.due_at is not None:
        return item
    return replace(item, due_at=DecisionRules.read(item.decision_rules).due_at(clock.now()))


def _plan_deadlines(tenant_id: UUID, items: Sequence[NewActivity], created: Mapping[UUID, Any]) -> None:
    """Create the deadlines of questions to people, and of other work that inherits a due time."""
    planned = [
        Deadline(tenant_id=tenant_id, activity_id=item.id, kind=kind, at=at, human_role=human_role)
        for item in items
        if item.id in created
        for kind, at, human_role in _deadlines_of(item, created[item.id].created_at)
    ]
    if planned:
        Deadline.objects.bulk_create(planned, ignore_conflicts=True)


def _deadlines_of(item: NewActivity, asked_at: datetime) -> list[tuple[str, datetime, str]]:
    if not _may_have_deadlines(item):
        return []
    rules = DecisionRules.read(item.decision_rules if item.human_role else None)
    # A due time that was inherited may have passed. One that follows from the rules lies ahead, whatever the clocks of the servers say.
    is_ahead = rules.due_seconds is not None or (item.due_at is not None and item.due_at > asked_at)
    return list(rules.deadlines(asked_at, item.due_at if is_ahead else None))


def _may_have_deadlines(item: NewActivity) -> bool:
    return item.due_at is not None or bool(item.human_role and item.decision_rules)


def _offers(tenant_id: UUID, items: Sequence[NewActivity], created: Mapping[UUID, Any]) -> list[Offer]:
    """Return offers of the created activities that may run now."""
    return [
        Offer(
            item.id,
            tenant_id,
            item.agent_role,
            item.priority,
            created[item.id].created_at,
            created[item.id].group_key,
            item.group_scope,
            tuple(item.files),
            item.pipeline_id,
            item.schedule_id,
        )
        for item in items
        if item.id in created
        and item.agent_role
        and (item.not_before is None or item.not_before <= clock.now())
    ]


def _existing(tenant_id: UUID, item: NewActivity) -> UUID | None:
    """Return the activity with which the item collided, or None if that has ended."""
    activities = Activity.objects.for_tenant(tenant_id)
    if item.dedup_key:
        equal = activities.filter(in_status(*states.LIVE), dedup_key=item.dedup_key)
    else:
        equal = activities.filter(
            pipeline_run_id=item.pipeline_run_id, step=item.step, branch=item.branch, round=item.round
        )
    return equal.values_list("id", flat=True).first()
