"""The only writer of `Activity.status`.

Every move is a compare-and-set against the state table. It increments the activity's version and records an event, in the caller's
transaction. When an activity settles, `activity_settled` is sent in the same transaction, so either both the activity and its pipeline
advance or neither does.

`claim`, `start`, `finish` and `requeue` are the moves of the hot path, one statement of `sql/` each. `claim` and `finish` take any number
of activities. All other moves use `apply`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb

from activities import states
from activities.exceptions import NotFound, RunSuperseded, TransitionRefused
from activities.models import Activity, Wake
from activities.run_tokens import RunToken
from activities.signals import activity_settled
from tenants import wire_json
from tenants.context import APP
from tenants.current_tenant import required_tenant
from tenants.sql import Array, Rows, Statement, load_parts

_FOLDER = Path(__file__).parent / "sql"
_START, _FINISH, _REQUEUE, _END_RUN, _SUSPEND = (
    Statement.load(_FOLDER, name) for name in ("start", "finish", "requeue", "end_run", "suspend")
)
#: Parts of each statement that claims activities.
CLAIMED = load_parts(_FOLDER, "claimed")
_CLAIM = Statement.load(_FOLDER, "claim").with_parts(CLAIMED)


@dataclass(frozen=True, slots=True)
class Following:
    """What an app above adds to the statement that completes activities of steps.

    `text`: common table expressions, which read the completed activities from `moved`. `table`: the one whose `columns` are appended to the
    rows as `followed_...`, all null if it has no row for an activity. It has at most one row for each, named by its column `activity`.
    """

    text: str
    table: str
    columns: Sequence[str]


def _finishing(following: Following | None) -> Statement:
    parts = {"following": "", "followed": "", "with_followed": ""}
    if following:
        columns = "".join(f', {following.table}."{name}" AS followed_{name}' for name in following.columns)
        parts = {
            "following": f", {following.text}",
            "followed": columns,
            "with_followed": f" LEFT JOIN {following.table} ON {following.table}.activity = moved.id",
        }
    return _FINISH.with_parts(parts)


_finish = _finish_of_step = _finishing(None)


def end_steps_with(following: Following) -> None:
    """Use this addition from now on, in this process."""
    global _finish_of_step
    _finish_of_step = _finishing(following)


#: A named tuple: the activity's row after the move, with `source`, its status before.
Moved = Any

_COLUMNS = {field.attname for field in Activity._meta.concrete_fields} - {
    "id",
    "tenant_id",
    "status",
    "version",
    "fence",
}


@cache
def _verb(name: str, prefix: str = "") -> Mapping[str, str]:
    """Return the parameters of a move. The source statuses are already in PostgreSQL's array syntax, to save their conversion in each
    execution."""
    parameters = {
        "verb": name,
        "sources": f"{{{','.join(states.sources_of(name))}}}",
        "target": states.target_of(name),
    }
    return MappingProxyType({f"{prefix}{key}": value for key, value in parameters.items()})


def apply(
    activity_id: UUID,
    verb: str,
    *,
    actor: str,
    detail: Mapping[str, Any] | None = None,
    run_id: UUID | None = None,
    **changes: Any,
) -> Moved:
    """Apply `verb` and set `changes` (columns of Activity).

    Must run inside `tenant_scope`. Raises `TransitionRefused` if the verb does not start from the activity's status, and `NotFound` if the
    tenant has no such activity.
    """
    rows = _move([activity_id], verb, actor=actor, detail=detail, run_id=run_id, changes=changes)
    if not rows:
        activity = Activity.objects.for_tenant(required_tenant()).filter(pk=activity_id)
        current = activity.values_list("status", flat=True).first()
        if current is None:
            raise NotFound("activity", activity_id)
        raise TransitionRefused(activity_id, verb, current)
    return announce(rows[0])


def apply_many(
    activity_ids: Sequence[UUID],
    verb: str,
    *,
    actor: str,
    detail: Mapping[str, Any] | None = None,
    **changes: Any,
) -> list[Moved]:
    """As `apply` for many activities in one statement. Skips those from whose status the verb does not start."""
    rows = _move(activity_ids, verb, actor=actor, detail=detail, run_id=None, changes=changes)
    return [announce(row) for row in rows]


def cancel_ready(
    activity_ids: Sequence[UUID], *, actor: str, detail: Mapping[str, Any], reason: str | None
) -> list[Moved]:
    """Cancel those of these ready activities that have not ended, and consume their wakes. Nothing else may depend on them."""
    moved = apply_many(activity_ids, "cancel", actor=actor, detail=detail, cancel_reason=reason)
    wakes = Wake.objects.for_tenant(required_tenant()).filter(
        activity_id__in=[activity.id for activity in moved]
    )
    wakes.filter(state=states.WakeState.PENDING).update(state=states.WakeState.CONSUMED)
    return moved


#: `cancel_reason` of what nobody needs any more.
OBSOLETE = "obsolete"


def why_obsolete(activity: Any) -> str:
    """Say who no longer needs an activity that was cancelled as `OBSOLETE`."""
    needs_it = (
        f"activity {activity.parent_id} does not need it" if activity.parent_id else "no activity needs it"
    )
    return f"{needs_it} any more"


def cancel_obsolete(activity_ids: Sequence[UUID], *, actor: str) -> list[Moved]:
    """Cancel those of these activities that have not ended, because nobody needs them any more."""
    if not activity_ids:
        return []
    return apply_many(
        activity_ids, "cancel", actor=actor, detail={"reason": OBSOLETE}, cancel_reason=OBSOLETE
    )


def _move(
    activity_ids: Sequence[UUID], verb: str, *, actor: str, detail: Mapping[str, Any] | None, run_id: UUID | None, changes: dict[str, Any]
) -> list[Moved]:  # fmt: skip
    _refuse_unknown(changes)
    step = states.TRANSITIONS[verb]
    if step.target in states.SETTLED:
        changes.setdefault("finished_at", NOW)
    elif step.target == states.Status.CREATED:
        changes.setdefault("finished_at", None)
    parameters = {
        "tenant": required_tenant(),
        "activities": list(activity_ids),
        "actor": actor,
        "detail": Jsonb(dict(detail or {})),
        "run": run_id,
    }
    return Statement(name="move", text=_MOVE.replace("{changes}", _assignments(changes))).run(
        {**parameters, **_verb(verb), **{f"to_{name}": _adapt(value) for name, value in changes.items()}},
        using=APP,
    )


#: As a change's value: the time of the move.
NOW = object()
#: As a change's value: the time that the column has, if it is still ahead, else NULL.
IF_AHEAD = object()


def _adapt(value: Any) -> Any:
    return Jsonb(value) if isinstance(value, dict | list) else None if value in (NOW, IF_AHEAD) else value


def _refuse_unknown(changes: Mapping[str, Any]) -> None:
    if unknown := changes.keys() - _COLUMNS:
        raise TypeError(f"not columns of an activity: {sorted(unknown)}")


def _assignments(changes: Mapping[str, Any]) -> str:
    """Return the SQL that assigns these columns. Their names come from the model, their values are parameters."""
    return "".join(
        f", {name} = {_expression(name, value)}" for name, value in sorted(changes.items(), key=itemgetter(0))
    )


def _expression(name: str, value: Any) -> str:
    if value is NOW:
        return "clock_timestamp()"
    if value is IF_AHEAD:
        return f"CASE WHEN {name} > clock_timestamp() THEN {name} END"
    return f"%(to_{name})s"


_MOVE = """
WITH before AS (
    SELECT id, status FROM activities_activity
    WHERE tenant_id = %(tenant)s AND id = ANY(%(activities)s) AND status = ANY(%(sources)s)
    ORDER BY id FOR UPDATE
), moved AS (
    UPDATE activities_activity a SET status = %(target)s, version = a.version + 1{changes}
    FROM before WHERE a.tenant_id = %(tenant)s AND a.id = before.id AND a.id = ANY(%(activities)s)
    RETURNING a.*, before.status AS source
), event AS (
    INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, run_id, detail, at)
    SELECT tenant_id, id, version, %(verb)s, source, status, %(actor)s, %(run)s, %(detail)s, clock_timestamp() FROM moved
)
SELECT * FROM moved
"""


def remark(
    details: Mapping[UUID, Mapping[str, Any]], verb: str, *, actor: str, **changes: Any
) -> list[Moved]:
    """Set `changes` (columns of Activity) without a change of status. `details`: by activity, the details of its event.

    Skips activities whose status is not in `states.REMARKS[verb]`. Must run inside `tenant_scope`.
    """
    _refuse_unknown(changes)
    if not details:
        return []
    statement = Statement(name="remark", text=_REMARK.replace("{changes}", _assignments(changes)))
    return statement.run(
        {
            "tenant": required_tenant(),
            "activities": list(details),
            "details": [
                wire_json.dumps_stored(dict(detail), default=str).decode() for detail in details.values()
            ],
            "verb": verb,
            "statuses": sorted(states.REMARKS[verb]),
            "actor": actor,
            **{f"to_{name}": _adapt(value) for name, value in changes.items()},
        },
        using=APP,
    )


_REMARK = """
WITH details AS (
    SELECT * FROM unnest(%(activities)s::uuid[], %(details)s::text[]) AS t(id, detail)
), before AS (
    SELECT id FROM activities_activity
    WHERE tenant_id = %(tenant)s AND id = ANY(%(activities)s) AND status = ANY(%(statuses)s)
    ORDER BY id FOR UPDATE
), moved AS (
    UPDATE activities_activity a SET version = a.version + 1{changes}
    FROM before WHERE a.tenant_id = %(tenant)s AND a.id = before.id AND a.id = ANY(%(activities)s)
    RETURNING a.*
), event AS (
    INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, run_id, detail, at)
    SELECT m.tenant_id, m.id, m.version, %(verb)s, m.status, m.status, %(actor)s, NULL, details.detail::jsonb, clock_timestamp()
    FROM moved m JOIN details ON details.id = m.id
)
SELECT * FROM moved
"""


class Claim(NamedTuple):
    """An activity to claim, the id of its run, and its grant."""

    activity_id: UUID
    run_id: UUID
    grant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """The worker that claims activities, and facts of their role. `version`: of the agent. `briefing`: digest of its instructions.

    `day`: for the ledger.
    """

    role: str
    worker_id: UUID
    timeout_seconds: int
    version: str
    day: date
    briefing: str = ""

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that the statements which claim activities have in common."""
        return {
            "role": self.role,
            "worker": self.worker_id,
            "timeout": self.timeout_seconds,
            "agent_version": self.version,
            "day": self.day,
            "briefing": self.briefing,
            **_verb("claim", "claim_"),
            **_verb("start", "start_"),
        }


def claim(claims: Sequence[Claim], *, tenant_id: UUID, by: Claimant) -> Rows:
    """Claim each activity for its run, and start those whose input is at hand (`started`).

    A row's `session` is null or `{id, fits}`: the live session, and whether its agent has received this `briefing`.

    Returns no row for what cannot be claimed, such as a duplicate, a late message or a cancelled activity. The statement is sent together
    with the next one of the transaction, mostly its commit.
    """
    activities, runs, grants = map(Array, zip(*sorted(claims), strict=True))
    return _CLAIM.run_with_next(
        {
            "tenant": tenant_id,
            "activities": activities,
            "runs": runs,
            "grants": grants,
            **by.parameters(),
        },
        using=APP,
    )


def start(run: RunToken) -> None:
    """Start a claimed activity whose input was fetched. Its agent is called next. Raises `RunSuperseded`."""
    if not _START.run({**_ids(run), "fence": run.fence, **_verb("start")}, using=APP):
        raise RunSuperseded(run.run_id)


def _ids(run: RunToken) -> dict[str, UUID]:
    return {"tenant": run.tenant_id, "activity": run.activity_id, "run": run.run_id}


class Result(NamedTuple):
    """The output of the run that has this fencing number."""

    activity_id: UUID
    run_id: UUID
    fence: int
    content: str | None
    data: Any
    content_type: str


def finish(
    results: Sequence[Result],
    *,
    tenant_id: UUID,
    needs_approval: bool,
    actor: str,
    of_step: bool = False,
    locked: bool = False,
) -> list[Moved]:
    """Accept results. Returns a row for each, with `run_id`, and none for a run that is not the live one.

    `of_step`: include what follows, see `Following`. `locked`: the caller has locked the activities; without it, those about which a
    question is open get no row. The caller must `announce` the rows.
    """
    move = _verb("request_approval" if needs_approval else "complete")
    (source,) = states.sources_of(move["verb"])
    in_order = sorted(results, key=itemgetter(0))
    activities, runs, fences, contents, data, content_types = map(Array, zip(*in_order, strict=True))
    return (_finish_of_step if of_step and not needs_approval else _finish).run(
        {
            "tenant": tenant_id,
            "activities": activities,
            "runs": runs,
            "fences": fences,
            "contents": contents,
            "data": Array(None if each is None else json.dumps(each) for each in data),
            "content_types": content_types,
            "actor": actor,
            "locked": locked,
            **move,
            "source": source,
        },
        using=APP,
    )


def requeue(
    run: RunToken,
    *,
    run_status: str,
    error: Mapping[str, Any] | None,
    cause: str,
    due_at: datetime | None = None,
    attempts: int = 0,
    stalls: int = 0,
    actor: str = "worker",
) -> Moved:
    """End a run without a result. The activity can be claimed again from `due_at`. Raises `RunSuperseded`."""
    rows = _REQUEUE.run(
        {
            **_ids(run),
            "fence": run.fence,
            "run_status": run_status,
            "error": None if error is None else Jsonb(dict(error)),
            "due_at": due_at,
            "cause": cause,
            "attempts": attempts,
            "stalls": stalls,
            "actor": actor,
            "detail": Jsonb(
                {"cause": cause, "due_at": due_at.isoformat() if due_at else None, "error": error}
            ),
            **_verb("release"),
        },
        using=APP,
    )
    if not rows:
        raise RunSuperseded(run.run_id)
    return rows[0]


def end_run(
    *, tenant_id: UUID, activity_id: UUID, run_status: str, error: Mapping[str, Any] | None = None
) -> Any | None:
    """End the live run, if any, of an activity that this transaction has just moved, and consume its wakes."""
    rows = _END_RUN.run(
        {
            "tenant": tenant_id,
            "activity": activity_id,
            "run_status": run_status,
            "error": None if error is None else Jsonb(dict(error)),
        },
        using=APP,
    )
    return rows[0] if rows else None


def suspend(run: RunToken, *, tool: str) -> Any | None:
    """End the live run of an activity that this transaction has just moved to a waiting status. None if the run had ended."""
    rows = _SUSPEND.run({**_ids(run), "tool": tool}, using=APP)
    return rows[0] if rows else None


def announce(moved: Moved) -> Moved:
    """Send `activity_settled` if the activity has settled, in the same transaction. Returns the row."""
    if moved.status in states.SETTLED:
        activity_settled.send(sender=Activity, activity=moved)
    return moved
