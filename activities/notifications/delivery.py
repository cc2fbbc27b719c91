"""Delivery: alerts leave the house, each at most once per channel that cannot recognise a repetition.

A delivery is claimed by compare-and-set, sent while no transaction is open, and then marked. A deliverer that dies in between leaves a
claim that nobody ends. After some minutes such a delivery is `unknown`, since it may have arrived, or is repeated if its receiver
recognises the repetition by its `webhook-id`. What certainly did not arrive is tried again with growing delays.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import close_old_connections, transaction
from django.db.models import F, Min, QuerySet
from django.db.models.functions import Greatest, Now

from activities.models import AlertDelivery
from activities.models.alert import ChannelKind, DeliveryState
from activities.notifications.backends import Target
from activities.retry_delays import RetryPolicy
from agents.exceptions import ConfigurationError
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.sql import Statement

from . import backends
from .backends import DeliveryProblem, Message, NotDelivered, Refused, Unclear

# Many slow calls at once by one deliverer: one thread claims and notes, others only wait for receivers.
#
# What is due is offered in turn by each caller; a claim may be refused, because others have it or because its tenant or receiver has as
# many calls under way as it may. A receiver that takes its time therefore holds one thread, and the deliverer goes on looking for work of
# others meanwhile.

Key = TypeVar("Key")

LOOK_SECONDS = 1.0  # between two looks for what became due while calls are under way
DELIVERERS = 2  # of one kind in one process: the second goes on while the first waits for its last answers; the others would only wait

_working: defaultdict[str, threading.BoundedSemaphore] = defaultdict(
    lambda: threading.BoundedSemaphore(DELIVERERS)
)


def carry_out(
    kind: str,
    *,
    due: Callable[[], Iterable[Key]],
    claim: Callable[[Key], Claim | None],
    attempt: Callable[[Claim], Any],
    note: Callable[[Claim, Any], None],
    one_each: bool,
    threads: int,
    limit: int,
    seconds: float,
) -> int:
    """Claim and carry out what is due until nothing is left; returns how many were tried. Nothing is claimed after `seconds` or `limit`.

    `due` gives keys to claim by, in turn; with `one_each` a key with a call under way is not claimed again by this deliverer.

    `attempt` runs in a thread of its own, uses no database and does not raise; the other three run in the caller's thread. Returns 0 at
    once where enough of this process are at it: these look again by themselves.
    """
    working = _working[kind]
    if not working.acquire(blocking=False):
        return 0
    try:
        return _in_turns(due, claim, attempt, note, one_each, threads, limit, time.monotonic() + seconds)
    finally:
        working.release()


def _in_turns(
    due: Callable[[], Iterable[Key]],
    claim: Callable[[Key], Claim | None],
    attempt: Callable[[Claim], Any],
    note: Callable[[Claim, Any], None],
    one_each: bool,
    threads: int,
    limit: int,
    ends: float,
) -> int:
    tried, running = 0, dict[Future[Any], tuple[Key, Claim]]()
    with ThreadPoolExecutor(threads, thread_name_prefix="delivery") as pool:
        while True:
            progress = True
            while progress and len(running) < threads and tried < limit and time.monotonic() < ends:
                progress = False
                under_way = {key for key, _ in running.values()} if one_each else set()
                for key in due():
                    if len(running) >= threads or tried >= limit or time.monotonic() >= ends:
                        break
                    # None when others have it: they go on with it.
                    if key not in under_way and (claimed := claim(key)) is not None:
                        running[pool.submit(copy_context().run, attempt, claimed)] = key, claimed
                        tried, progress = tried + 1, True
            if not running:
                return tried
            ended, _ = wait(running, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            for future in ended:
                note(running.pop(future)[1], future.result())


logger = logging.getLogger(__name__)

#: Eight tries over about two hours.
POLICY = RetryPolicy(max_attempts=8, base_seconds=10.0, multiplier=3.0, max_seconds=3600.0)
INTERRUPTED_SECONDS = (
    300.0  # far above what one attempt may take, so that a slow one is not mistaken for a dead one
)
QUIET_SECONDS = 60.0  # for so long a claim keeps others from its channel
SECONDS_AT_ONCE = 20.0  # of one message from the queue; then others get their turn, or the worker may stop

INTERRUPTED = "The process that sent it ended before it could say what came of it."

#: A row of `sql/claim_delivery.sql`: the delivery with all that is needed to send it.
Claim = Any

_LOCK_TURN, _CLAIM = (
    Statement.load(Path(__file__).parent.parent / "sql", name)
    for name in ("lock_deliveries", "claim_delivery")
)
_SENDERS: Mapping[str, Callable[[Message, Target], None]] = {
    ChannelKind.SLACK: backends.send_to_slack,
    ChannelKind.EMAIL: backends.send_mail,
    ChannelKind.WEBHOOK: backends.send_to_webhook,
}


def waiting(kind: str) -> QuerySet[AlertDelivery]:
    """What a deliverer of this kind would look at now, of all tenants. By the index of what is due."""
    unfinished = AlertDelivery.objects.filter(state__in=(DeliveryState.PENDING, DeliveryState.SENDING))
    return unfinished.filter(channel_kind=kind, next_attempt_at__lte=Now())


def deliver_waiting(kind: str, limit: int = 50) -> int:
    """Send what is due to channels of this kind, many at once; returns how many were tried.

    Tenants take turns, and none has more than `ORCHESTRATOR_DELIVERY_TENANT_LANE` calls under way, so that the many slow receivers of one
    do not keep the alerts of the others. Any number of processes may do this at once. Never raises for what a receiver does. Not inside
    a transaction.
    """
    close_old_connections()
    _end_interrupted(kind)
    served = Counter[UUID]()

    def claim(tenant_id: UUID) -> Claim | None:
        served[tenant_id] += 1
        return _claim_delivery(kind, tenant_id)

    return carry_out(
        f"alerts {kind}",
        due=lambda: sorted(_tenants_in_turn(kind), key=served.__getitem__),
        claim=claim,
        attempt=_attempt_delivery,
        note=_note_outcome,
        one_each=False,
        threads=settings.ORCHESTRATOR_DELIVERY_THREADS,
        limit=limit,
        seconds=SECONDS_AT_ONCE,
    )


def send_again(delivery: AlertDelivery) -> bool:
    """Try a delivery that has ended without success once more, on somebody's word. False if it is not in such a state any more."""
    with tenant_scope(delivery.tenant_id):
        ended = AlertDelivery.objects.for_tenant(delivery.tenant_id).filter(
            pk=delivery.pk, state__in=(DeliveryState.FAILED, DeliveryState.UNKNOWN)
        )
        return bool(ended.update(state=DeliveryState.PENDING, next_attempt_at=Now()))


def _end_interrupted(kind: str) -> None:
    with system_scope():
        interrupted = waiting(kind).filter(state=DeliveryState.SENDING)
        if kind != ChannelKind.WEBHOOK:
            interrupted.update(state=DeliveryState.UNKNOWN, last_error=INTERRUPTED)
            return
        exhausted = interrupted.filter(attempts__gte=POLICY.max_attempts)
        exhausted.update(state=DeliveryState.FAILED, last_error=INTERRUPTED)
        interrupted.update(state=DeliveryState.PENDING, last_error=INTERRUPTED)


def _tenants_in_turn(kind: str) -> list[UUID]:
    """Whose deliveries are due, the one that has waited longest first."""
    with system_scope():
        due = waiting(kind).values_list("tenant_id", flat=True)
        return list(due.annotate(since=Min("next_attempt_at")).order_by("since"))


def _claim_delivery(kind: str, tenant_id: UUID) -> Claim | None:
    parameters = {
        "tenant": tenant_id,
        "kind": kind,
        "quiet": QUIET_SECONDS,
        "patience": INTERRUPTED_SECONDS,
        "tenant_lane": settings.ORCHESTRATOR_DELIVERY_TENANT_LANE,
    }
    with transaction.atomic(using=SYSTEM):
        # Lock before reading: two claims at once would each count what is under way without the other.
        if not _LOCK_TURN.run(parameters, using=SYSTEM):
            return None
        rows = _CLAIM.run(parameters, using=SYSTEM)
    return rows[0] if rows else None


def _attempt_delivery(claim: Claim) -> DeliveryProblem | None:
    """Send it; what kept it from arriving, or None when it has arrived."""
    sending = False
    try:
        message, target = Message.of(claim), _target_of(claim)
        sending = True
        _SENDERS[claim.channel_kind](message, target)
    except DeliveryProblem as problem:
        return problem
    except Exception as error:
        logger.exception("Alert broke", extra={"action": "alert_broke", "delivery": str(claim.id)})
        text = f"Our own mistake: {type(error).__name__}"
        return Unclear(text) if sending else NotDelivered(text)
    return None


def _note_outcome(claim: Claim, problem: DeliveryProblem | None) -> None:
    if problem is None:
        _note(claim, state=DeliveryState.SENT, sent_at=Now(), last_error="")
    else:
        _note_problem(claim, problem)


def _target_of(claim: Claim) -> Target:
    if claim.channel_id is None:
        target = backends.platform_target(claim.channel_kind)
    elif claim.target_sealed is None:
        target = None
    else:
        try:
            target = backends.unseal_target(claim.tenant_id, claim.channel_id, claim.target_sealed)
        except ConfigurationError as error:
            raise Refused(str(error)) from error
    if target is None:
        raise Refused("The channel was removed or switched off.")
    return target


def _note_problem(claim: Claim, problem: DeliveryProblem) -> None:
    repeatable = claim.channel_kind == ChannelKind.WEBHOOK
    if isinstance(problem, Unclear) and not repeatable:
        state = DeliveryState.UNKNOWN
    elif isinstance(problem, Refused) or claim.attempt >= POLICY.max_attempts:
        state = DeliveryState.FAILED
    else:
        state = DeliveryState.PENDING
    changes: dict[str, Any] = {"state": state, "last_error": str(problem)[:500]}
    if state == DeliveryState.PENDING:
        changes["next_attempt_at"] = Now() + POLICY.delay(claim.attempt)
    facts = {"delivery": str(claim.id), "kind": claim.channel_kind, "state": state.value}
    logger.warning("Alert not delivered", extra={"action": "alert_not_delivered", **facts})
    _note(claim, **changes)
    if isinstance(problem, NotDelivered) and problem.retry_after:
        _leave_alone(claim, timedelta(seconds=problem.retry_after))


def _note(claim: Claim, **changes: Any) -> None:
    """Say what came of this claim, unless somebody has claimed the delivery since: then that one says it.

    A deliverer so slow that it was taken for dead still knows best.
    """
    with tenant_scope(claim.tenant_id):
        own = AlertDelivery.objects.for_tenant(claim.tenant_id).filter(pk=claim.id, attempts=claim.attempt)
        own.update(**changes)


def _leave_alone(claim: Claim, wait: timedelta) -> None:
    """The receiver asked for a pause, and means all that would be sent there: other alerts would only use up their tries."""
    with system_scope():
        rows = AlertDelivery.objects.filter(state=DeliveryState.PENDING, channel_kind=claim.channel_kind)
        if claim.channel_id is None:
            rows = rows.filter(channel_id__isnull=True)
        else:
            rows = rows.filter(tenant_id=claim.tenant_id, channel_id=claim.channel_id)
        rows.update(next_attempt_at=Greatest(F("next_attempt_at"), Now() + wait))
