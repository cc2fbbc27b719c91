"""Handling: the activity goes to `needs_review`, an escalation asks a person, an alert goes out, a planner is woken where the tenant has
one. All of it or nothing, once per letter.

At most one process does it at a time, so that a thousand failures at once are told of one after the other. The turn is held for one letter,
by its transaction, which PostgreSQL ends when the process is frozen in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connections
from django.db.models import QuerySet
from django.db.models.functions import Now

from activities import activity_tree, transitions
from activities.alerts import raise_alert
from activities.decision_rules import DEFAULT_ESCALATION_ROLE
from activities.models import Activity, DeadLetter
from activities.models.alert import AlertKind, Severity
from activities.models.dead_letter import BurialReason, DeadLetterState
from activities.states import BANDS, LinkKind, Status
from activities.submission import NewActivity, child_of, submit
from agents.models import AgentConfig
from tenants import outages
from tenants.context import APP, system_scope, tenant_scope

logger = logging.getLogger(__name__)

PAGE = 200
JOB_FAILED = "job.failed"  # what a planner is woken with
TURN_LOCK = 0x6465616C  # "deal": the transaction that holds it handles a dead letter; never change it
TURN_SECONDS = 20.0  # Then the queue gets its worker back. While letters wait, the next hint is on its way.

_SAID = {
    BurialReason.EXHAUSTED: "its attempts are used up",
    BurialReason.PERMANENT: "another attempt would fail alike",
    BurialReason.STALLED: "its worker was lost once too often",
    BurialReason.WAKE_BUDGET: "it was woken again and again without getting anywhere",
    BurialReason.RATE_LIMITED: "its agent or provider asked to come back later for too long",
}


class _NotOurTurn(Exception):
    """Another process is handling a letter."""


class _Unhandled(NamedTuple):
    pk: UUID
    tenant_id: UUID
    activity_id: UUID | None


def handle_waiting(*, within: float = TURN_SECONDS) -> int:
    """Tell people of every dead letter that they were not told of yet, for at most `within` seconds; how many.

    One process at a time, others return at once. A letter that cannot be handled holds up no other. Raises what says so when
    PostgreSQL does not answer.
    """
    handled, until = 0, time.monotonic() + within
    for letter in _waiting():
        try:
            handled += _handled(letter)
        except _NotOurTurn:
            break
        if time.monotonic() > until:
            break
    return handled


def unhandled() -> QuerySet[Any]:
    """What people were not told of yet, of all tenants."""
    rows: QuerySet[Any] = DeadLetter.objects.filter(handled_at=None)
    return rows


def unhandled_since(age: timedelta) -> bool:
    """Whether somebody should have been told of something that long ago."""
    with system_scope():
        return unhandled().filter(created_at__lt=Now() - age).exists()


def _waiting() -> Iterator[_Unhandled]:
    """Oldest first, each once in a turn."""
    last: UUID | None = None
    while True:
        with system_scope():
            rows = unhandled() if last is None else unhandled().filter(pk__gt=last)
            found = rows.order_by("pk").values_list("pk", "tenant_id", "activity_id")[:PAGE]
            page = [_Unhandled(*row) for row in found]
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1].pk


def _handled(letter: _Unhandled) -> bool:
    try:
        with tenant_scope(letter.tenant_id):
            _take_turn()
            return _handle_item(letter) if letter.activity_id is None else _handle(letter, letter.activity_id)
    except _NotOurTurn:
        raise
    except Exception as error:
        if outages.may_pass(error):
            raise
        # A mistake of ours about one failure must not keep people from learning of all others.
        logger.exception(
            "A dead letter cannot be handled",
            extra={"action": "dead_letter_stuck", "dead_letter": str(letter.pk)},
        )
        return False


def _take_turn() -> None:
    """Until the end of the transaction. Raises `_NotOurTurn`."""
    with connections[APP].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [TURN_LOCK])
        if not cursor.fetchone()[0]:
            raise _NotOurTurn


def _handle(waiting: _Unhandled, activity_id: UUID) -> bool:
    activity = activity_tree.lock_with_parent(waiting.tenant_id, activity_id)
    letters = DeadLetter.objects.for_tenant(waiting.tenant_id).filter(pk=waiting.pk, handled_at=None)
    letter = letters.select_for_update().first()
    if activity is None or letter is None:
        return False  # It was handled or deleted in this moment.
    if letter.state == DeadLetterState.OPEN:
        if activity.status == Status.FAILED:
            transitions.apply(activity_id, "escalate", actor="engine", detail={"dead_letter": str(letter.pk)})
        letter.escalation_id = _escalate(activity, letter)
        letter.planning_id = _wake_planners(activity, letter)
        _alert(activity, letter)
    letters.update(handled_at=Now(), escalation_id=letter.escalation_id, planning_id=letter.planning_id)
    return True


def _handle_item(waiting: _Unhandled) -> bool:
    """Nobody in the inbox can do the work of a consumer outside, so there is an alert and no escalation."""
    letters = DeadLetter.objects.for_tenant(waiting.tenant_id).filter(pk=waiting.pk, handled_at=None)
    letter = letters.select_for_update().first()
    if letter is None:
        return False
    if letter.state == DeadLetterState.OPEN:
        _alert(None, letter)
    letters.update(handled_at=Now())
    return True


def _escalate(activity: Activity, letter: DeadLetter) -> UUID:
    escalation = child_of(
        activity,
        LinkKind.ESCALATION,
        name=f"Failed: {activity.name}"[:200],
        description=f"{_told(letter)}\n\nTry it again, hand it to somebody else, or cancel it.",
        human_role=DEFAULT_ESCALATION_ROLE,
        priority=BANDS["urgent"],
        metadata={"dead_letter": str(letter.pk), "fingerprint": letter.fingerprint, "reason": letter.reason},
    )
    return submit([escalation], actor="engine")[0].id


def _wake_planners(activity: Activity, letter: DeadLetter) -> UUID | None:
    """Have the roles of the tenant that hear of failures plan again; the activity of the first of them.

    They hear of a kind of failure once in a while, not of each of a thousand: their activity tells the fingerprint, by which all are
    listed. A planner does not hear of its own failures, nor of its subtasks', whose end it is told anyway: it would plan for ever.
    """
    chosen = AgentConfig.objects.for_tenant(letter.tenant_id).filter(
        hears_of_failures=True, enabled=True, agent__enabled=True
    )
    roles = list(chosen.order_by("agent_id").values_list("agent_id", flat=True))
    concerned = {activity.agent_role, _asked_by(activity)}
    if not roles or not concerned.isdisjoint(roles) or _planned_lately(letter):
        return None
    failed = {
        "event": JOB_FAILED,
        "activity": str(activity.pk),
        "name": activity.name,
        "agent_role": letter.agent_role,
        "reason": letter.reason,
        "error": letter.error,
        "attempts": letter.attempts,
        "stalls": letter.stalls,
        "dead_letter": str(letter.pk),
        "fingerprint": letter.fingerprint,
        "pipeline_run": activity.pipeline_run_id and str(activity.pipeline_run_id),
        "step": activity.step,
    }
    planning = [
        NewActivity(
            name="Plan again after a failure",
            description="Work has failed for good; the parameters say what and why. Plan how its goal is reached all the same.",
            agent_role=role,
            params=failed,
            metadata={"event": JOB_FAILED, "dead_letter": str(letter.pk)},
            deliverable_id=activity.deliverable_id,
            priority=BANDS["gated"],
            dedup_key=f"{JOB_FAILED}:{role}:{letter.fingerprint}",
        )
        for role in roles
    ]
    return submit(planning, actor="engine", bounded=False)[0].id


def _asked_by(activity: Activity) -> str | None:
    """The role of the agent whose subtask this was."""
    if activity.parent_id is None:
        return None
    parents = Activity.objects.for_tenant(activity.tenant_id).filter(pk=activity.parent_id)
    role: str | None = parents.values_list("agent_role", flat=True).first()
    return role


def _planned_lately(letter: DeadLetter) -> bool:
    alike = DeadLetter.objects.for_tenant(letter.tenant_id).filter(fingerprint=letter.fingerprint)
    since = Now() - timedelta(seconds=settings.ORCHESTRATOR_PLAN_AGAIN_SECONDS)
    return alike.filter(planning_id__isnull=False, handled_at__gte=since).exists()


def _alert(activity: Activity | None, letter: DeadLetter) -> None:
    raise_alert(
        letter.tenant_id,
        AlertKind.WAKE_BUDGET if letter.reason == BurialReason.WAKE_BUDGET else AlertKind.DEAD_LETTER,
        f"Failed: {letter.name if activity is None else activity.name}",
        body=_told(letter),
        severity=Severity.CRITICAL,
        activity_id=activity.pk if activity else None,
        facts={
            **({} if activity else {"mailbox": letter.mailbox_key, "mailbox_item": letter.mailbox_item_id}),
            "agent_role": letter.agent_role,
            "reason": letter.reason,
            "error": letter.error.get("code"),
            "attempts": letter.attempts,
            "stalls": letter.stalls,
            "cost_usd": letter.cost_usd,
            "fingerprint": letter.fingerprint,
        },
        dedup_key=f"dead-letter:{letter.pk}",
    )


def _told(letter: DeadLetter) -> str:
    said = _SAID[BurialReason(letter.reason)]
    message = str(letter.error.get("message") or letter.error.get("code") or "")
    stalls = f", stalls {letter.stalls}" if letter.stalls else ""
    cost = f", cost so far ${letter.cost_usd.normalize():f}" if letter.cost_usd else ""
    who = letter.agent_role or f"The consumer of the mailbox {letter.mailbox_key}"
    return f"{who} has given up: {said}. Attempts {letter.attempts}{stalls}{cost}. {message}"
