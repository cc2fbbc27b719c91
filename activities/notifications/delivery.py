"""Delivery: sends alerts to their channels, at most once to a channel that cannot recognise a repetition.

A delivery is claimed by compare-and-set, sent while no transaction is open, and then marked. If the process dies in between, the claim
stays open. After some minutes such a delivery becomes `unknown`, because it may have arrived, or it is repeated if its receiver recognises
the repetition by its `webhook-id`. What certainly did not arrive is retried with growing delays.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
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
from activities.notifications import backends
from activities.notifications.backends import DeliveryProblem, Message, NotDelivered, Refused, Target, Unclear
from activities.retry_delays import RetryPolicy
from agents.exceptions import ConfigurationError
from tenants import outages
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.sql import Statement

# Many slow calls at once: the caller's thread claims deliveries and records outcomes, and a pool of threads calls the receivers.
#
# A claim may be refused, because another process has it, or because the tenant or the receiver has the maximum number of calls in
# progress. So a slow receiver occupies one thread, while the others continue with other deliveries.

Key = TypeVar("Key")

POLL_SECONDS = 1.0  # between two searches for new deliveries while calls are in progress
DELIVERERS = 2  # per kind and process: the second continues while the first waits for its last answers

_deliverers: defaultdict[str, threading.BoundedSemaphore] = defaultdict(
    lambda: threading.BoundedSemaphore(DELIVERERS)
)


def deliver_many(
    kind: str,
    *,
    due: Callable[[], Iterable[Key]],
    claim: Callable[[Key], Claim | None],
    attempt: Callable[[Claim], Any],
    record: Callable[[Claim, Any], None],
    one_per_key: bool,
    limit: int,
) -> int:
    """Claim and send what is due until nothing is left, or until `limit` or `SECONDS_AT_ONCE` is reached. Returns the number of attempts.

    `due` returns the keys to claim by, in turn. With `one_per_key` a key with a call in progress is not claimed again by this caller.

    `attempt` runs in the pool; it must not use the database or raise. The other three run in the caller's thread. Returns 0 at once if this
    process has enough deliverers of this kind, because these find new deliveries too.
    """
    threads, ends = settings.ORCHESTRATOR_DELIVERY_THREADS, time.monotonic() + SECONDS_AT_ONCE
    tried, running = 0, dict[Future[Any], tuple[Key, Claim]]()
    deliverers = _deliverers[kind]
    if not deliverers.acquire(blocking=False):
        return 0
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="delivery") as pool:
            while True:
                progress = True
                while progress and len(running) < threads and tried < limit and time.monotonic() < ends:
                    progress = False
                    in_progress = {key for key, _ in running.values()} if one_per_key else set()
                    for key in due():
                        if len(running) >= threads or tried >= limit or time.monotonic() >= ends:
                            break
                        if key in in_progress:
                            continue
                        claimed = None  # if another process has claimed it, or it fails
                        with _one_of_many(kind, key):
                            claimed = claim(key)
                        if claimed is not None:
                            running[pool.submit(copy_context().run, attempt, claimed)] = key, claimed
                            tried, progress = tried + 1, True
                if not running:
                    return tried
                ended, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in ended:
                    key, claimed = running.pop(future)
                    with _one_of_many(kind, key):
                        record(claimed, future.result())
    finally:
        deliverers.release()


def _one_of_many(kind: str, key: object) -> AbstractContextManager[None]:
    return outages.one_of_many(logger, "Delivery failed", action="delivery_failed", kind=kind, key=str(key))


def claim_in_turn(lock: Statement, claim: Statement, parameters: Mapping[str, Any]) -> Claim | None:
    """Claim a delivery. Locks before reading, because two concurrent claims would not count each other.

    A process that freezes here delays only the tenant or channel that it has locked, until PostgreSQL ends its idle transaction.
    """
    with transaction.atomic(using=SYSTEM):
        rows = claim.run(parameters, using=SYSTEM) if lock.run(parameters, using=SYSTEM) else ()
    return rows[0] if rows else None


logger = logging.getLogger(__name__)

#: Eight attempts over about two hours.
POLICY = RetryPolicy(max_attempts=8, base_seconds=10.0, multiplier=3.0, max_seconds=3600.0)
INTERRUPTED_SECONDS = 300.0  # far above the time of one attempt, so that a slow process is not taken for dead
QUIET_SECONDS = 60.0  # a claim reserves its channel for this long
SECONDS_AT_ONCE = 20.0  # per message from the queue; then others get their turn, or the worker may stop

INTERRUPTED = "The process that sent it ended before it recorded the outcome."

#: A row of `sql/claim_delivery.sql`: the delivery with everything needed to send it.
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
    """Return the deliveries of this kind that are due, of all tenants. Uses the index of due deliveries."""
    unfinished = AlertDelivery.objects.filter(state__in=(DeliveryState.PENDING, DeliveryState.SENDING))
    return unfinished.filter(channel_kind=kind, next_attempt_at__lte=Now())


def deliver_waiting(kind: str, limit: int = 50) -> int:
    """Send what is due to channels of this kind, many at once. Returns the number of attempts.

    Tenants take turns, and none has more than `ORCHESTRATOR_DELIVERY_TENANT_LANE` calls in progress, so that slow receivers of one tenant
    do not delay the alerts of others. Safe in any number of processes at once. Never raises because of a receiver. Must not run inside a
    transaction.
    """
    close_old_connections()
    _end_interrupted(kind)
    served = Counter[UUID]()

    def claim(tenant_id: UUID) -> Claim | None:
        served[tenant_id] += 1
        return _claim_delivery(kind, tenant_id)

    return deliver_many(
        f"alerts {kind}",
        due=lambda: sorted(_tenants_in_turn(kind), key=served.__getitem__),
        claim=claim,
        attempt=_attempt_delivery,
        record=_record_outcome,
        one_per_key=False,
        limit=limit,
    )


def send_again(delivery: AlertDelivery) -> bool:
    """Queue a failed or unknown delivery again, at a person's request. Returns False if it is no longer in such a state."""
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
    """Return the tenants with due deliveries, the longest waiting first."""
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
    return claim_in_turn(_LOCK_TURN, _CLAIM, parameters)


def _attempt_delivery(claim: Claim) -> DeliveryProblem | None:
    """Send the alert. Returns the problem, or None if it has arrived."""
    sending = False
    try:
        message, target = Message.of(claim), _target_of(claim)
        sending = True
        _SENDERS[claim.channel_kind](message, target)
    except DeliveryProblem as problem:
        return problem
    except Exception as error:
        logger.exception("Alert failed", extra={"action": "alert_broke", "delivery": str(claim.id)})
        text = f"Internal error: {type(error).__name__}"
        return Unclear(text) if sending else NotDelivered(text)
    return None


def _record_outcome(claim: Claim, problem: DeliveryProblem | None) -> None:
    if problem is None:
        _update(claim, state=DeliveryState.SENT, sent_at=Now(), last_error="")
        return
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
    _update(claim, **changes)
    if isinstance(problem, NotDelivered) and problem.retry_after:
        _pause_channel(claim, timedelta(seconds=problem.retry_after))


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


def _update(claim: Claim, **changes: Any) -> None:
    """Record the outcome of this claim, unless the delivery has been claimed again since.

    This also holds for a process that was so slow that its delivery was already marked as interrupted.
    """
    with tenant_scope(claim.tenant_id):
        own = AlertDelivery.objects.for_tenant(claim.tenant_id).filter(pk=claim.id, attempts=claim.attempt)
        own.update(**changes)


def _pause_channel(claim: Claim, wait: timedelta) -> None:
    """Delay all deliveries to a receiver that asked for a pause, because they would only use up their attempts."""
    with system_scope():
        rows = AlertDelivery.objects.filter(state=DeliveryState.PENDING, channel_kind=claim.channel_kind)
        if claim.channel_id is None:
            rows = rows.filter(channel_id__isnull=True)
        else:
            rows = rows.filter(tenant_id=claim.tenant_id, channel_id=claim.channel_id)
        rows.update(next_attempt_at=Greatest(F("next_attempt_at"), Now() + wait))
