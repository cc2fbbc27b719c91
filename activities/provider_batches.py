"""Batches of model providers: collects requests that can wait, sends them together, and records the answers when the provider is done.

A parked run waits for a batch like a run whose agent answered 202: no worker waits for it, and it holds no slot. Work with a group key or
files keeps its slots except the worker's seat, because the group waits for it. Its item is bound to a batch in PostgreSQL before anything
is sent. If a process that works on a batch dies, another continues after a lease. Two at once do no harm, because the fencing number of
the run lets an answer count only once. The steps, each a section below:

    settling    records an answer for its run
    binding     binds collected items of one provider, credential and model to a batch, by number, size and age
    sending     sends a batch once, and finds it at the provider if the response was lost
    polling     checks a sent batch, and records its answers
    advancing   takes the next step of every batch that is due
    leaving     moves urgent work to the real-time route
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate
from typing import Any
from uuid import UUID

import orjson
from django.conf import settings
from django.db.models import Count, Exists, F, Min, OuterRef, Q, QuerySet, Sum
from django.db.models.functions import Coalesce, Now

from activities import budgets, relay
from activities.admission import Exchange
from activities.admission.exchange import Release
from activities.exceptions import OutputTooLarge, RunSuperseded
from activities.execution import reports, results
from activities.models import Activity, ActivityRun, BatchItem, ProviderBatch
from activities.models.batch import OPEN_BATCHES, OPEN_ITEMS, BatchState, ItemState
from activities.pauses import read_pauses
from activities.run_tokens import RunToken
from agents import batches, configuration
from agents.batches import MOST_REQUESTS, Answer, MessageBatches
from agents.contracts import BATCHES_OF, AgentRequest, Completed, Output, Parked
from agents.exceptions import (
    AgentError,
    AgentRateLimited,
    CredentialsUnreadable,
    LeftBatch,
    PermanentAgentError,
    RetryableAgentError,
)
from tenants import clock, outages, sweeps
from tenants.context import system_scope, tenant_scope
from tenants.sweeps import Sweep

logger = logging.getLogger(__name__)


def with_history(request: AgentRequest, row: Any) -> AgentRequest:
    """Return the request with the facts that decide whether it may wait for a batch. `row` is the claimed activity."""
    if request.settings.adapter not in BATCHES_OF:
        return request
    moments = [moment for moment in (row.expires_at, row.due_at) if moment is not None]
    moved = _moved_item(row)
    begun = moved.begun if moved is not None and moved.fence == row.fence - 1 else None
    return replace(request, wanted_by=min(moments, default=None), at_once=moved is not None, begun=begun)


def _moved_item(row: Any) -> BatchItem | None:
    """Return the item with which the work left a batch, unless a later run has completed or suspended it."""
    with tenant_scope(row.tenant_id):
        items = BatchItem.objects.for_tenant(row.tenant_id).filter(activity_id=row.id, state=ItemState.MOVED)
        moved: BatchItem | None = items.order_by("-fence").first()
        if moved is None:
            return None
        runs = ActivityRun.objects.for_tenant(row.tenant_id).filter(activity_id=row.id, status="completed")
        return None if runs.filter(fence__gt=moved.fence).exists() else moved


def park(run: RunToken, parked: Parked, row: Any) -> None:
    """Store the run's request for a batch, and release its slots. Idempotent. Raises `RunSuperseded`."""
    holds_up_group = bool(row.group_key or row.files)
    with tenant_scope(run.tenant_id):
        # The item first, because its foreign key locks the activity, which must be locked before the run.
        item = BatchItem(
            tenant_id=run.tenant_id, activity_id=run.activity_id, run_id=run.run_id, fence=run.fence, briefing=run.briefing,
            agent_role=row.agent_role, provider=parked.provider, model=parked.model, body=dict(parked.body),
            bytes=len(orjson.dumps(parked.body)), leave_at=parked.leave_at,
        )  # fmt: skip
        BatchItem.objects.bulk_create([item], ignore_conflicts=True)
        runs = ActivityRun.objects.for_tenant(run.tenant_id).filter(
            pk=run.run_id, fence=run.fence, status="running"
        )
        grants = list(runs.values_list("grant", flat=True))
        if not runs.update(
            accepted_at=Coalesce("accepted_at", Now()), worker_id=None, parked=not holds_up_group
        ):
            raise RunSuperseded(run.run_id)
        if not holds_up_group:
            relay.after_commit(Exchange(releases=[Release(run.activity_id, grant) for grant in grants]))


def token_of(item: BatchItem) -> RunToken:
    return RunToken(item.tenant_id, item.activity_id, item.run_id, item.fence, item.briefing)


def close(item: BatchItem, state: ItemState, *, begun: Mapping[str, Any] | None = None) -> bool:
    """Close an open item; returns False if it was closed already. The last lock of the transaction."""
    items = BatchItem.objects.for_tenant(item.tenant_id).filter(pk=item.pk, state__in=OPEN_ITEMS)
    stored = None if begun is None else dict(begun)
    return bool(items.update(state=state, closed_at=Now(), body=None, begun=stored))


# Describing what parked work waits for.


def waiting_items(tenant_id: UUID, activity_ids: Iterable[UUID]) -> dict[UUID, BatchItem]:
    """Return the open items of these activities, by activity id, with their batches. In a `tenant_scope`."""
    ids = list(activity_ids)
    if not ids:
        return {}
    items = BatchItem.objects.for_tenant(tenant_id).filter(activity_id__in=ids, state__in=OPEN_ITEMS)
    return {item.activity_id: item for item in items.select_related("batch").defer("body", "begun")}


def count_collected_with(item: BatchItem) -> int:
    """Count the items that wait for the same batch, this one included. In a `tenant_scope`."""
    lane = BatchItem.objects.for_tenant(item.tenant_id).filter(
        provider=item.provider, model=item.model, state=ItemState.COLLECTED
    )
    return lane.count()


def provider_name(provider: str) -> str:
    """Return the adapter and address of a provider key, without its credential."""
    adapter, address, *_ = provider.split("|")
    return f"{adapter} at {address}"


def describe_item(item: BatchItem, *, number: int | None = None) -> str:
    """Describe in one sentence where the item is. `number` is the number of collected items, if known."""
    batch = item.batch
    if batch is None:
        latest = item.created_at + timedelta(seconds=settings.ORCHESTRATOR_BATCH_AGE_SECONDS)
        so_far = "" if number is None else f" with {number} of {settings.ORCHESTRATOR_BATCH_SIZE} requests"
        return f"It waits for a batch{so_far}; the batch is sent at {_format_time(latest)} at the latest."
    if batch.state == BatchState.SENT:
        since = "" if batch.sent_at is None else f", which was sent at {_format_time(batch.sent_at)}"
        return f"It is one of {batch.size} in the batch {batch.external_id}{since}; the provider answers within a day."
    return f"It is one of {batch.size} in a batch that is being sent."


def _format_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


# Settling: records an answer, or its absence, for the run of an item.
#
# The run and the item end in one transaction. An answer for a run that has ended is ignored, but its cost is counted.

ACTOR = "engine"


def settle_item(item: BatchItem, answer: Answer) -> None:
    """Record an answer. Idempotent."""
    if item.state not in OPEN_ITEMS:
        # Count the cost of an answer that came too late to be used.
        if item.state in (ItemState.MOVED, ItemState.DROPPED) and answer.message is not None:
            results.note_late(token_of(item), Completed(Output(), batches.usage_of(answer.message)))
    elif answer.message is not None:
        _record_answer(item, answer.message)
    elif answer.error is not None:
        fail_item(item, answer.error)


def fail_item(item: BatchItem, error: AgentError) -> None:
    """Fail the item and its run; the run's retry policy decides what follows."""
    with tenant_scope(item.tenant_id):
        try:
            results.record_failed(token_of(item), error, actor=ACTOR)
        except RunSuperseded:
            close(item, ItemState.DROPPED)
        else:
            close(item, ItemState.FAILED)


def move_to_real_time(item: BatchItem, why: str, *, begun: Mapping[str, Any] | None = None) -> None:
    """Continue the work on the real-time route at once. `begun` is an answer of the model from which the work continues."""
    run = token_of(item)
    with tenant_scope(item.tenant_id):
        try:
            results.record_failed(run, LeftBatch(why), actor=ACTOR)
        except RunSuperseded:
            state, begun = ItemState.DROPPED, None
        else:
            state = ItemState.MOVED
        close(item, state, begun=begun)
    logger.info(
        "Item moved to the real-time route",
        extra={"action": "batch_left", "run": str(item.run_id), "state": state.value},
    )


def _record_answer(item: BatchItem, message: Mapping[str, Any]) -> None:
    run, usage = token_of(item), batches.usage_of(message)
    options = configuration.settings_for(item.tenant_id, item.agent_role).adapter.options
    with tenant_scope(item.tenant_id):
        budgets.count_usage(run, usage)  # first, so that the dead letter of a failure includes the cost
    with tenant_scope(item.tenant_id):
        try:
            completed = batches.read_completed(message, options)
            if completed is not None:
                _complete(item, completed)
                return
        except AgentError as error:
            fail_item(item, error)
        else:
            move_to_real_time(
                item,
                "The model's answer does not complete the work; the conversation continues.",
                begun=message,
            )


def _complete(item: BatchItem, completed: Completed) -> None:
    try:
        reports.complete(token_of(item), completed, actor=ACTOR)
    except OutputTooLarge as error:
        raise PermanentAgentError(str(error), code=error.code) from error
    except (reports.RunOver, reports.AlreadyCompleted):
        # `reports.complete` has counted the usage when it refused the result.
        close(item, ItemState.DROPPED)
    else:
        close(item, ItemState.ANSWERED)


# Binding: collected items of one provider, credential and model are bound to a batch once they are enough, or old enough.
#
# Binding is one transaction before sending, so that an item always belongs to one batch. Two processes that bind at once take turns: the
# second one sees fewer collected items, or none.

_LANES = Sweep[tuple[UUID, tuple[str, str]]]()


def list_collected() -> QuerySet[BatchItem]:
    """Return the items of all tenants that are not bound to a batch yet."""
    return BatchItem.objects.filter(state=ItemState.COLLECTED)


def bind_items() -> int:
    """Bind the lanes that have enough or old enough items. Returns the number of new batches."""
    count = 0
    for tenant_id, (provider, model) in _LANES.turn(_list_ready):
        with outages.one_of_many(
            logger, "Items not bound to a batch", action="batch_not_bound", provider=provider
        ):
            while _bind(tenant_id, provider, model):
                count += 1
    return count


def _list_ready(last: tuple[UUID, tuple[str, str]] | None) -> list[tuple[UUID, tuple[str, str]]]:
    enough = (
        Q(number__gte=_size())
        | Q(oldest__lte=_old_enough())
        | Q(weight__gte=settings.ORCHESTRATOR_BATCH_MAX_BYTES)
    )
    lanes = list_collected().order_by().values("tenant_id", "provider", "model")
    counted = lanes.annotate(number=Count("id"), oldest=Min("created_at"), weight=Sum("bytes"))
    ready = counted.filter(enough).values_list("tenant_id", "provider", "model")
    with system_scope():
        found = sorted((tenant_id, (provider, model)) for tenant_id, provider, model in ready)
    return [lane for lane in found if last is None or lane > last]


def _bind(tenant_id: UUID, provider: str, model: str) -> bool:
    """Create one batch if there are enough items. Returns whether to try again."""
    with tenant_scope(tenant_id):
        lane = BatchItem.objects.for_tenant(tenant_id).filter(
            provider=provider, model=model, state=ItemState.COLLECTED
        )
        # Locked in the order of ids: a process that binds at the same time waits, and then sees them bound.
        items = list(lane.order_by("id").select_for_update().only("id", "bytes", "agent_role")[: _size()])
        if not items:
            return False
        own_items = BatchItem.objects.for_tenant(tenant_id)
        if drop_ended(tenant_id, own_items.filter(pk__in=[item.pk for item in items])):
            return True
        fitting = _fitting(items)
        full = len(items) == _size() or len(fitting) < len(items)
        if not full and not lane.filter(created_at__lte=_old_enough()).exists():
            return False
        batch = ProviderBatch.objects.create(
            tenant_id=tenant_id, agent_role=fitting[0].agent_role, provider=provider, model=model, size=len(fitting)
        )  # fmt: skip
        lane.filter(pk__in=[item.pk for item in fitting]).update(state=ItemState.BOUND, batch=batch)
    logger.info(
        "Batch bound",
        extra={
            "action": "batch_bound",
            "batch": str(batch.pk),
            "tenant": str(tenant_id),
            "items": batch.size,
        },
    )
    return True


def drop_ended(tenant_id: UUID, items: QuerySet[BatchItem]) -> int:
    """Drop those of these open items whose runs have ended; returns how many. In a `tenant_scope`."""
    live = ActivityRun.objects.for_tenant(tenant_id).filter(pk=OuterRef("run_id"), status="running")
    return items.filter(~Exists(live)).update(state=ItemState.DROPPED, closed_at=Now(), body=None)


def _fitting(items: Sequence[BatchItem]) -> Sequence[BatchItem]:
    """Return the first items that together do not exceed the size of a batch; at least one."""
    sums = accumulate(item.bytes for item in items)
    limit = settings.ORCHESTRATOR_BATCH_MAX_BYTES
    return [item for item, total in zip(items, sums, strict=True) if total <= limit] or items[:1]


def _size() -> int:
    return max(1, min(settings.ORCHESTRATOR_BATCH_SIZE, MOST_REQUESTS))


def _old_enough() -> object:
    return Now() - timedelta(seconds=settings.ORCHESTRATOR_BATCH_AGE_SECONDS)


# Changes of a batch, common to the sections below.
#
# Each is a compare-and-set from the state in which the batch was read; of two at once, the second changes nothing.


def move(batch: ProviderBatch, source: BatchState, **changes: Any) -> bool:
    """Change the batch if it is in this state; returns whether it was."""
    with tenant_scope(batch.tenant_id):
        rows = ProviderBatch.objects.for_tenant(batch.tenant_id).filter(pk=batch.pk, state=source)
        return bool(rows.update(**changes))


def postpone(batch: ProviderBatch, error: AgentError) -> None:
    """Leave the batch in its state for the time that its provider requests, or else until the next poll."""
    wait = max(error.retry_after or 0.0, settings.ORCHESTRATOR_BATCH_POLL_SECONDS)
    move(batch, BatchState(batch.state), due_at=from_now(wait), error=results.as_dict(error))


def fail_batch(batch: ProviderBatch, source: BatchState, target: BatchState, error: AgentError) -> None:
    """End the batch, and fail its open items with the error."""
    for item in list_open_items(batch):
        fail_item(item, error)
    move(batch, source, state=target, ended_at=Now(), error=results.as_dict(error))


def items_of(batch: ProviderBatch) -> QuerySet[BatchItem]:
    items: QuerySet[BatchItem] = BatchItem.objects.for_tenant(batch.tenant_id)
    return items.filter(batch_id=batch.pk)


def open_items(batch: ProviderBatch) -> QuerySet[BatchItem]:
    """Return the items that were neither answered nor cancelled. In a `tenant_scope`."""
    return items_of(batch).filter(state=ItemState.BOUND)


def list_open_items(batch: ProviderBatch) -> list[BatchItem]:
    """Load the open items without their requests."""
    with tenant_scope(batch.tenant_id):
        return list(open_items(batch).defer("body", "begun"))


def from_now(seconds: float) -> Any:
    """Return the time `seconds` after PostgreSQL's current time."""
    return Now() + timedelta(seconds=seconds)


# Sending: a batch is sent once, and found at the provider if the response was lost.
#
# The state `sending` is stored before the call, so a batch is never sent twice without a search: the provider lists the batches created
# since then, and an unknown one with the same number of requests is taken for ours. Its answers name their items; if they name none of
# ours, the search continues. The batch is sent again only if no listed batch matches, which is counted and logged.

SKEW = timedelta(minutes=10)  # the largest expected difference between the provider's clock and PostgreSQL's
LISTED_FOR = timedelta(days=3)  # longer than a batch may take


def send(batch: ProviderBatch, api: MessageBatches) -> None:
    """Send a bound batch, unless another process does."""
    with tenant_scope(batch.tenant_id):
        bodies = open_items(batch).order_by("id").values_list("id", "body")
        requests = [(pk.hex, body or {}) for pk, body in bodies]
    changes = {"state": BatchState.SENDING, "sent_at": Now(), "sendings": F("sendings") + 1}
    if not move(batch, BatchState.BOUND, **changes, sent=len(requests)):
        return
    try:
        created = api.create(requests)
    except RetryableAgentError as error:
        _record_failed_sending(batch, error)
    except AgentError as error:
        fail_batch(batch, BatchState.SENDING, BatchState.REFUSED, error)
    else:
        _record_sent(batch, created.id)


def find_sent(batch: ProviderBatch, api: MessageBatches) -> None:
    """Find a batch at the provider whose sender died or got no response. Its lease, which has expired, is longer than any call."""
    try:
        candidates = _list_candidates(batch, api)
    except AgentError as error:
        postpone(batch, error)
        return
    if candidates:
        _record_sent(batch, candidates[-1], is_found=True)
        return
    logger.warning(
        "Batch not found at its provider, sent again",
        extra={"action": "batch_resent", "batch": str(batch.pk)},
    )
    move(batch, BatchState.SENDING, state=BatchState.BOUND, due_at=Now())


def _list_candidates(batch: ProviderBatch, api: MessageBatches) -> list[str]:
    """Return the provider's ids of batches that may be this one, the best one last.

    Batches of all tenants are compared, because tenants may share a credential. What another batch has only found may still be this one.
    """
    with system_scope():
        recent = ProviderBatch.objects.filter(created_at__gt=Now() - LISTED_FOR).exclude(external_id="")
        known = list(recent.values_list("external_id", "is_found", "state"))
    others = {name for name, is_found, state in known if not is_found or state == BatchState.ENDED}
    others |= set(batch.not_ours)
    listed = api.list_created(since=(batch.sent_at or batch.created_at) - SKEW)
    candidates = [each.id for each in listed if each.requests == batch.sent and each.id not in others]
    found = {name for name, *_ in known}
    return sorted(candidates, key=lambda name: name not in found)


def _record_failed_sending(batch: ProviderBatch, error: RetryableAgentError) -> None:
    """Send the batch later if nothing can have arrived; otherwise search for it when the lease has expired."""
    logger.warning(
        "Batch not sent",
        extra={"action": "batch_not_sent", "batch": str(batch.pk), "reason": error.error_code},
    )
    changes: dict[str, Any] = {"error": results.as_dict(error)}
    if isinstance(error, AgentRateLimited) or error.nothing_sent:
        wait = error.retry_after or settings.ORCHESTRATOR_BATCH_POLL_SECONDS
        changes |= {"state": BatchState.BOUND, "due_at": from_now(wait)}
    move(batch, BatchState.SENDING, **changes)


def _record_sent(batch: ProviderBatch, external_id: str, *, is_found: bool = False) -> None:
    move(
        batch, BatchState.SENDING, state=BatchState.SENT, external_id=external_id, is_found=is_found, error=None,
        due_at=from_now(settings.ORCHESTRATOR_BATCH_POLL_SECONDS),
    )  # fmt: skip
    logger.info(
        "Batch sent",
        extra={
            "action": "batch_sent",
            "batch": str(batch.pk),
            "external_id": external_id,
            "items": batch.size,
        },
    )


# Polling: checks a sent batch, and records its answers once it has ended.
#
# If a process dies half-way, the next poll records the answers of the items that are still open; answered items take no second answer.

RENEWED_EVERY = 100  # answers


def poll(batch: ProviderBatch, api: MessageBatches) -> None:
    """Record the answers if the batch has ended, or else poll again later."""
    try:
        if _fetch_status(batch, api) != "ended":
            move(batch, BatchState.SENT, due_at=from_now(settings.ORCHESTRATOR_BATCH_POLL_SECONDS))
        elif _record_answers(batch, api):
            move(batch, BatchState.SENT, state=BatchState.ENDED, ended_at=Now(), error=None)
        else:
            _search_again(batch)
    except AgentError as error:
        if error.error_code != PermanentAgentError.code:
            # The provider has not refused the batch: the call failed, is forbidden here, or its answer cannot be read.
            postpone(batch, error)
            return
        lost = RetryableAgentError(f"The batch is lost: {error}", code="batch_lost")
        fail_batch(batch, BatchState.SENT, BatchState.ENDED, lost)


def _fetch_status(batch: ProviderBatch, api: MessageBatches) -> str:
    """Return the batch's status at its provider, and cancel it there if nothing waits for its answers any more.

    What the provider has answered by then is still read, because it must be paid for.
    """
    status = api.fetch(batch.external_id).status
    with tenant_scope(batch.tenant_id):
        is_wanted = open_items(batch).exists()
    # A batch that was found in the list may be that of another client.
    if is_wanted or batch.is_found or status != "in_progress":
        return status
    try:
        return api.cancel(batch.external_id).status
    except AgentError as error:
        logger.warning(
            "Batch not cancelled",
            extra={"action": "batch_not_cancelled", "batch": str(batch.pk), "reason": error.error_code},
        )
        return status


def cancel_sent(tenant_id: UUID) -> list[str]:
    """Cancel the batches of a tenant whose work has ended. Return those that their providers may still process, each with its provider."""
    with tenant_scope(tenant_id):
        rows = ProviderBatch.objects.for_tenant(tenant_id)
        sent = list(rows.filter(state__in=(BatchState.SENDING, BatchState.SENT)))
    return [
        f"{batch.external_id or 'a batch'} at {provider_name(batch.provider)}"
        for batch in sent
        if not _is_cancelled(batch)
    ]


def _is_cancelled(batch: ProviderBatch) -> bool:
    if not batch.external_id:
        return False
    try:
        return _fetch_status(batch, client_for(batch, batch.agent_role)) != "in_progress"
    except AgentError:
        return False


def _record_answers(batch: ProviderBatch, api: MessageBatches) -> bool:
    """Settle every item with its answer. Returns False if the answers belong to another batch."""
    with tenant_scope(batch.tenant_id):
        unanswered = {item.pk.hex: item for item in items_of(batch).defer("body", "begun")}
    has_unknown, unreadable = False, None
    answers = api.answers(batch.external_id, max_bytes=settings.ORCHESTRATOR_BATCH_RESULT_MAX_BYTES)
    for number, answer in enumerate(answers, 1):
        item = unanswered.pop(answer.custom_id, None)
        if item is None:
            has_unknown = has_unknown or bool(answer.custom_id)
            unreadable = unreadable or answer.error
            continue
        _settle_or_fail(item, answer)
        if number % RENEWED_EVERY == 0:
            move(batch, BatchState.SENT, due_at=from_now(settings.ORCHESTRATOR_BATCH_LEASE_SECONDS))
    if len(unanswered) == batch.size:
        if has_unknown and batch.is_found:
            return False
        if unreadable is not None and not has_unknown:
            raise unreadable  # these are no results at all
    for item in unanswered.values():
        if item.state in OPEN_ITEMS:
            message = "The batch has ended without an answer to this request."
            fail_item(item, RetryableAgentError(message, code="batch_incomplete"))
    return True


def _settle_or_fail(item: BatchItem, answer: Answer) -> None:
    """Record an answer. If that is impossible, its item fails alone, because the other items must not wait for it."""
    try:
        results.persistently(partial(settle_item, item, answer))
    except Exception as error:
        if outages.may_pass(error):
            raise
        broken = results.internal_error(error, token_of(item))
        if item.state in OPEN_ITEMS:
            fail_item(item, broken)


def _search_again(batch: ProviderBatch) -> None:
    not_ours = [*batch.not_ours, batch.external_id]
    move(batch, BatchState.SENT, state=BatchState.SENDING, external_id="", not_ours=not_ours, due_at=Now())


# Advancing: takes the next step of every batch that is due.
#
# A process first leases the batch by postponing its `due_at`; if it dies, another process continues after that time.

_DUE = Sweep[Any]()

STEPS = {
    BatchState.BOUND: send,
    BatchState.SENDING: find_sent,
    BatchState.SENT: poll,
}


def list_due() -> QuerySet[ProviderBatch]:
    """Return the batches of all tenants whose next step is due."""
    return ProviderBatch.objects.filter(state__in=OPEN_BATCHES, due_at__lte=Now())


def advance_due() -> int:
    """Advance the batches that are due; returns how many. A batch that fails does not block the others."""
    count = 0
    for _, batch_id, tenant_id in _DUE.turn(sweeps.pages(list_due(), "due_at", "pk", "tenant_id")):
        # A step that fails is repeated when the lease expires.
        with outages.one_of_many(logger, "Batch step failed", action="batch_failed", batch=str(batch_id)):
            advance(tenant_id, batch_id)
        count += 1
    return count


def advance(tenant_id: UUID, batch_id: UUID) -> None:
    """Take the batch's next step, unless another process holds its lease."""
    batch = _lease_batch(tenant_id, batch_id)
    if batch is None:
        return
    with tenant_scope(tenant_id):
        roles = set(open_items(batch).order_by().values_list("agent_role", flat=True).distinct())
    is_given_up = batch.state == BatchState.BOUND or batch.created_at < clock.now() - LISTED_FOR
    if not roles and is_given_up:
        end(batch)
    elif (api := _choose_client(batch, roles or {batch.agent_role})) is not None:
        STEPS[BatchState(batch.state)](batch, api)


def _choose_client(batch: ProviderBatch, roles: Iterable[str]) -> MessageBatches | None:
    """Return the client of the batch's provider. The items of roles that use another provider now leave the batch.

    Returns None if no role uses the provider any more. The batch has then ended, and its answers are lost. Also returns None if this
    process cannot decrypt a role's credentials, because another one may have the key; the batch stays as it is.
    """
    clients, refusal = [], None
    for role in sorted(roles):
        try:
            clients.append(client_for(batch, role))
        except CredentialsUnreadable as error:
            postpone(batch, error)
            return None
        except AgentError as error:
            refusal = error
            for item in list_open_items(batch):
                if item.agent_role == role:
                    move_to_real_time(item, str(error))
    if not clients:
        end(batch, error=refusal)
        return None
    # The credential that sent the batch, if a role still has it.
    return min(clients, key=lambda client: client.provider.key != batch.provider)


def client_for(batch: ProviderBatch, role: str) -> MessageBatches:
    """Return the client of the batch's provider, from the role's settings. Raises `AgentError` if the role uses another provider now.

    Another credential for the same provider is accepted, because keys are rotated.
    """
    chosen = configuration.settings_for(batch.tenant_id, role).adapter
    return batches.client_for(chosen, batch.provider)


def _lease_batch(tenant_id: UUID, batch_id: UUID) -> ProviderBatch | None:
    with tenant_scope(tenant_id):
        rows = ProviderBatch.objects.for_tenant(tenant_id).filter(pk=batch_id)
        due = rows.filter(state__in=OPEN_BATCHES, due_at__lte=Now())
        if not due.update(due_at=from_now(settings.ORCHESTRATOR_BATCH_LEASE_SECONDS)):
            return None
        batch: ProviderBatch = rows.get()
        drop_ended(tenant_id, items_of(batch).filter(state__in=OPEN_ITEMS))
    return batch


def end(batch: ProviderBatch, *, error: AgentError | None = None) -> None:
    reason = None if error is None else results.as_dict(error)
    move(batch, BatchState(batch.state), state=BatchState.ENDED, ended_at=Now(), error=reason)


# Leaving: urgent items no longer wait for a batch, whether they are bound to one or not. A late answer is ignored.
#
# An item stays while a pause would keep its work from continuing in real time, because its batch may still answer.

_LEAVING = Sweep[Any]()

LEAVE_REASON = "It is needed soon, and its batch has not answered yet; it continues in real time."


def list_leaving() -> QuerySet[BatchItem]:
    """Return the items of all tenants that must leave their batch now."""
    return BatchItem.objects.filter(state__in=OPEN_ITEMS, leave_at__lte=Now())


def move_leaving() -> int:
    """Move the leaving items to the real-time route; returns how many."""
    columns = ("leave_at", "id", "tenant_id", "activity_id", "run_id", "fence", "briefing")
    count = 0
    for row in _LEAVING.turn(sweeps.pages(list_leaving(), *columns)):
        item = BatchItem(**dict(zip(columns, row, strict=True)))
        with outages.one_of_many(
            logger, "Item not moved to the real-time route", action="batch_not_left", run=str(item.run_id)
        ):
            if not _is_paused(item):
                move_to_real_time(item, LEAVE_REASON)
                count += 1
    return count


def _is_paused(item: BatchItem) -> bool:
    with tenant_scope(item.tenant_id):
        activity = Activity.objects.for_tenant(item.tenant_id).get(pk=item.activity_id)
        return read_pauses(item.tenant_id, {activity.agent_role or ""}).of(activity) is not None
