"""Batches of model providers: requests that can wait are collected, sent together and answered whenever the provider is done.

A run that waits for a batch is accepted, as one of an agent that answered 202: no worker waits for it, and it holds no slot. Work of a
group keeps its slots but for the worker's seat: the group waits for it. Its item is bound to a batch in PostgreSQL before anything is
sent. A process that works on batches may die at any moment; another goes on after a lease. Two at once do no harm: an answer counts once,
by the fencing number of its run. The steps, each a section below:

    settling    what an answer means for its run
    gathering   what is collected for one provider, credential and model is bound to a batch, by number, size and age
    sending     a batch is sent once, and found again when the answer to that was lost
    collecting  a batch that was sent is looked at, and its answers are taken in
    tending     every batch that is due takes its next step
    leaving     what is wanted soon goes to the real-time route
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
from activities.exceptions import RunSuperseded
from activities.execution import reports, results
from activities.models import ActivityRun, BatchItem, ProviderBatch
from activities.models.batch import OPEN_BATCHES, OPEN_ITEMS, BatchState, ItemState
from activities.run_tokens import RunToken
from agents import batches, configuration
from agents.batches import MOST_REQUESTS, Answer, MessageBatches
from agents.contracts import BATCHES_OF, AgentRequest, Completed, Output, Parked
from agents.exceptions import (
    AgentError,
    AgentRateLimited,
    ConfigurationError,
    LeftBatch,
    PermanentAgentError,
    RetryableAgentError,
)
from tenants.context import system_scope, tenant_scope

logger = logging.getLogger(__name__)


def with_history(request: AgentRequest, row: Any) -> AgentRequest:
    """The request, with what decides whether it may wait for a batch. `row` is the claimed activity."""
    if request.settings.adapter not in BATCHES_OF:
        return request
    moments = [moment for moment in (row.expires_at, row.due_at) if moment is not None]
    moved = _item_moved_to(row)
    begun = moved.begun if moved is not None and moved.fence == row.fence - 1 else None
    return replace(request, wanted_by=min(moments, default=None), at_once=moved is not None, begun=begun)


def _item_moved_to(row: Any) -> BatchItem | None:
    """The item with which the work has left a batch, until it has come to an end or was put aside since."""
    with tenant_scope(row.tenant_id):
        items = BatchItem.objects.for_tenant(row.tenant_id).filter(activity_id=row.id, state=ItemState.MOVED)
        moved: BatchItem | None = items.order_by("-fence").first()
        if moved is None:
            return None
        ended_well = Q(status="completed") | ~Q(ended_by_tool="")
        runs = ActivityRun.objects.for_tenant(row.tenant_id).filter(ended_well, activity_id=row.id)
        return None if runs.filter(fence__gt=moved.fence).exists() else moved


def park(run: RunToken, parked: Parked, row: Any) -> None:
    """Keep the run's request, and let its slots go. Twice is as once. Raises `RunSuperseded`."""
    holds_up_group = bool(row.group_key or row.files)
    with tenant_scope(run.tenant_id):
        # The item first: its key locks the activity, which goes before the run.
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
    """What proves the run of an item."""
    return RunToken(item.tenant_id, item.activity_id, item.run_id, item.fence, item.briefing)


def close(item: BatchItem, state: ItemState, *, begun: Mapping[str, Any] | None = None) -> bool:
    """End an open item; False when somebody else was first. The last that its transaction locks."""
    items = BatchItem.objects.for_tenant(item.tenant_id).filter(pk=item.pk, state__in=OPEN_ITEMS)
    kept = None if begun is None else dict(begun)
    return bool(items.update(state=state, closed_at=Now(), body=None, begun=kept))


# What parked work waits for, as people are told.


def waiting_items(tenant_id: UUID, activity_ids: Iterable[UUID]) -> dict[UUID, BatchItem]:
    """The open items of these activities, with their batches. In a `tenant_scope`."""
    ids = list(activity_ids)
    if not ids:
        return {}
    items = BatchItem.objects.for_tenant(tenant_id).filter(activity_id__in=ids, state__in=OPEN_ITEMS)
    return {item.activity_id: item for item in items.select_related("batch").defer("body", "begun")}


def count_collected_with(item: BatchItem) -> int:
    """How many items wait for the same batch, itself included. In a `tenant_scope`."""
    lane = BatchItem.objects.for_tenant(item.tenant_id).filter(
        provider=item.provider, model=item.model, state=ItemState.COLLECTED
    )
    return lane.count()


def provider_name(provider: str) -> str:
    """A provider by its key, without its credential."""
    adapter, place, *_ = provider.split("|")
    return f"{adapter} at {place}"


def describe_item(item: BatchItem, *, number: int | None = None) -> str:
    """One sentence on where the item is. `number` of the collected ones is told if it is known."""
    batch = item.batch
    if batch is None:
        goes = item.created_at + timedelta(seconds=settings.ORCHESTRATOR_BATCH_AGE_SECONDS)
        so_far = "" if number is None else f" with {number} of {settings.ORCHESTRATOR_BATCH_SIZE}"
        return f"It waits for a batch, collected{so_far}; the batch goes out at {_show_moment(goes)} at the latest."
    if batch.state == BatchState.SENT:
        since = "" if batch.sent_at is None else f", which was sent at {_show_moment(batch.sent_at)}"
        return f"It is one of {batch.size} in the batch {batch.external_id}{since}; the provider answers within a day."
    return f"It is one of {batch.size} in a batch that is being sent."


def _show_moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


# Settling: what an answer, or its lack, means for the run of an item.
#
# The run's end and the item's are one transaction. A run that is over already takes no answer; what that has cost is counted all the
# same.


ACTOR = "engine"


def settle_item(item: BatchItem, answer: Answer) -> None:
    """Take an answer in. Nothing happens the second time."""
    if item.state not in OPEN_ITEMS:
        _count_late(item, answer)
    elif answer.message is not None:
        _record_answer(item, answer.message)
    elif answer.error is not None:
        fail_item(item, answer.error)


def fail_item(item: BatchItem, error: AgentError) -> None:
    """The item has failed; its run's retry policy decides what follows."""
    with tenant_scope(item.tenant_id):
        try:
            results.record_failed(token_of(item), error, actor=ACTOR)
        except RunSuperseded:
            close(item, ItemState.DROPPED)
        else:
            close(item, ItemState.FAILED)


def move_to_real_time(item: BatchItem, why: str, *, begun: Mapping[str, Any] | None = None) -> None:
    """Let the work go on at the real-time route, at once, with `begun` if the model has said something already."""
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
        "Item left its batch", extra={"action": "batch_left", "run": str(item.run_id), "state": state.value}
    )


def _record_answer(item: BatchItem, message: Mapping[str, Any]) -> None:
    run, usage = token_of(item), batches.usage_of(message)
    options = configuration.settings_for(item.tenant_id, item.agent_role).adapter.options
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
                item, "The model's answer does not end the work; the conversation goes on.", begun=message
            )
        budgets.count_usage(run, usage)


def _complete(item: BatchItem, completed: Completed) -> None:
    try:
        reports.complete(token_of(item), completed, actor=ACTOR)
    except reports.OutputTooLarge as error:
        raise PermanentAgentError(str(error), code=error.code) from error
    except (reports.RunOver, reports.AlreadyCompleted):
        # What it has used was counted when it was refused.
        close(item, ItemState.DROPPED)
    else:
        close(item, ItemState.ANSWERED)


def _count_late(item: BatchItem, answer: Answer) -> None:
    """Nobody wanted the answer any more, but it has to be paid for."""
    if item.state in (ItemState.MOVED, ItemState.DROPPED) and answer.message is not None:
        late = Completed(Output(), batches.usage_of(answer.message))
        results.note_late(token_of(item), late)


# Gathering: what is collected for one provider, credential and model is bound to a batch once there is enough, or it has waited enough.
#
# Binding is one transaction and comes before sending, so that an item belongs to one batch whatever happens. Two who gather at once take
# turns: the second finds less, or nothing.


LANES = 100  # of one turn


def list_collected() -> QuerySet[BatchItem]:
    """What waits for a batch, of all tenants."""
    return BatchItem.objects.filter(state=ItemState.COLLECTED)


def gather() -> int:
    """Bind what is enough or old enough. Returns how many batches were made."""
    with system_scope():
        lanes = list(_list_ready()[:LANES])
    count = 0
    for tenant_id, provider, model in lanes:
        while _bind(tenant_id, provider, model):
            count += 1
    return count


def _list_ready() -> QuerySet[BatchItem, tuple[UUID, str, str]]:
    enough = (
        Q(number__gte=_size())
        | Q(oldest__lte=_old_enough())
        | Q(weight__gte=settings.ORCHESTRATOR_BATCH_MAX_BYTES)
    )
    lanes = list_collected().order_by().values("tenant_id", "provider", "model")
    counted = lanes.annotate(number=Count("id"), oldest=Min("created_at"), weight=Sum("bytes"))
    return counted.filter(enough).order_by("oldest").values_list("tenant_id", "provider", "model")


def _bind(tenant_id: UUID, provider: str, model: str) -> bool:
    """Make one batch, if there is enough for one; whether to look again."""
    with tenant_scope(tenant_id):
        lane = BatchItem.objects.for_tenant(tenant_id).filter(
            provider=provider, model=model, state=ItemState.COLLECTED
        )
        # Locked in the order of their ids: anyone who gathers at the same time waits, and finds them bound.
        found = list(lane.order_by("id").select_for_update().only("id", "bytes", "agent_role")[: _size()])
        if not found:
            return False
        if _drop_ended(tenant_id, found):
            return True
        fitting = _fitting(found)
        full = len(found) == _size() or len(fitting) < len(found)
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
    """Close the open ones among the items whose runs are over. In a `tenant_scope`."""
    live = ActivityRun.objects.for_tenant(tenant_id).filter(pk=OuterRef("run_id"), status="running")
    return items.filter(~Exists(live)).update(state=ItemState.DROPPED, closed_at=Now(), body=None)


def _drop_ended(tenant_id: UUID, found: Sequence[BatchItem]) -> int:
    ids = [item.pk for item in found]
    return drop_ended(tenant_id, BatchItem.objects.for_tenant(tenant_id).filter(pk__in=ids))


def _fitting(found: Sequence[BatchItem]) -> Sequence[BatchItem]:
    """As many as a batch may hold bytes of; one at least."""
    sums = accumulate(item.bytes for item in found)
    most = settings.ORCHESTRATOR_BATCH_MAX_BYTES
    return [item for item, total in zip(found, sums, strict=True) if total <= most] or found[:1]


def _size() -> int:
    return max(1, min(settings.ORCHESTRATOR_BATCH_SIZE, MOST_REQUESTS))


def _old_enough() -> object:
    return Now() - timedelta(seconds=settings.ORCHESTRATOR_BATCH_AGE_SECONDS)


# Steps: what all who look after a batch do with its rows.
#
# Each step is a compare-and-set from the state in which the batch was looked at; who comes second changes nothing.


def move(batch: ProviderBatch, source: BatchState, **changes: Any) -> bool:
    """Change the batch while it is in this state; whether it was."""
    with tenant_scope(batch.tenant_id):
        rows = ProviderBatch.objects.for_tenant(batch.tenant_id).filter(pk=batch.pk, state=source)
        return bool(rows.update(**changes))


def put_off(batch: ProviderBatch, error: AgentError) -> None:
    """Leave the batch in its state, for as long as its provider asks or until the next look at it."""
    wait = max(error.retry_after or 0.0, settings.ORCHESTRATOR_BATCH_POLL_SECONDS)
    move(batch, BatchState(batch.state), due_at=after(wait), error=results.as_dict(error))


def give_up(batch: ProviderBatch, source: BatchState, target: BatchState, error: AgentError) -> None:
    """End the batch, and let its open items fail with the error."""
    for item in each_open(batch):
        fail_item(item, error)
    move(batch, source, state=target, ended_at=Now(), error=results.as_dict(error))


def items_of(batch: ProviderBatch) -> QuerySet[BatchItem]:
    items: QuerySet[BatchItem] = BatchItem.objects.for_tenant(batch.tenant_id)
    return items.filter(batch_id=batch.pk)


def open_items(batch: ProviderBatch) -> QuerySet[BatchItem]:
    """Those that nobody has answered or called off. In a `tenant_scope`."""
    return items_of(batch).filter(state=ItemState.BOUND)


def each_open(batch: ProviderBatch) -> list[BatchItem]:
    """The open items, without what they ask."""
    with tenant_scope(batch.tenant_id):
        return list(open_items(batch).defer("body", "begun"))


def after(seconds: float) -> Any:
    """The moment so many seconds after PostgreSQL's now."""
    return Now() + timedelta(seconds=seconds)


# Sending: a batch is sent once, and found again when the answer to that was lost.
#
# That it is being sent is on record before the call, so it is never sent twice without having been looked for: the provider's list names
# what was created since, and a batch of the same number of requests that nobody knows is taken for it. Its answers name their items; when
# they name none of ours, it was not. Only when the list has no such batch it is sent again, which is counted and logged.


SKEW = timedelta(minutes=10)  # what the provider's clock and PostgreSQL's may differ by
LISTED_FOR = timedelta(days=3)  # longer than a batch may take


def send(batch: ProviderBatch, api: MessageBatches) -> None:
    """Send a bound batch, unless somebody else does."""
    with tenant_scope(batch.tenant_id):
        bodies = open_items(batch).order_by("id").values_list("id", "body")
        requests = [(pk.hex, body or {}) for pk, body in bodies]
    begun = {"state": BatchState.SENDING, "sent_at": Now(), "sendings": F("sendings") + 1}
    if not move(batch, BatchState.BOUND, **begun, sent=len(requests)):
        return
    try:
        created = api.create(requests)
    except RetryableAgentError as error:
        _not_sent(batch, error)
    except AgentError as error:
        give_up(batch, BatchState.SENDING, BatchState.REFUSED, error)
    else:
        _record_sending(batch, created.id)


def find_again(batch: ProviderBatch, api: MessageBatches) -> None:
    """Its sender died, or never got an answer. The lease that has passed since is longer than any call."""
    try:
        like = _like(batch, api)
    except AgentError as error:
        put_off(batch, error)
        return
    if like:
        _record_sending(batch, like[-1])
        return
    logger.warning(
        "Batch not found at its provider, sent again",
        extra={"action": "batch_resent", "batch": str(batch.pk)},
    )
    move(batch, BatchState.SENDING, state=BatchState.BOUND, due_at=Now())


def _like(batch: ProviderBatch, api: MessageBatches) -> list[str]:
    """What the provider calls the batches that may be this one."""
    others = _list_known_names() | set(batch.not_ours)
    listed = api.list_created(since=(batch.sent_at or batch.created_at) - SKEW)
    return [found.id for found in listed if found.requests == batch.sent and found.id not in others]


def _list_known_names() -> set[str]:
    """The provider's names of all batches, whosever they are: tenants may share a credential."""
    with system_scope():
        young = ProviderBatch.objects.filter(created_at__gt=Now() - LISTED_FOR).exclude(external_id="")
        return set(young.values_list("external_id", flat=True))


def _not_sent(batch: ProviderBatch, error: RetryableAgentError) -> None:
    """Where it is certain that nothing arrived it is sent later; else it is looked for once the lease is over."""
    logger.warning(
        "Batch not sent",
        extra={"action": "batch_not_sent", "batch": str(batch.pk), "reason": error.error_code},
    )
    changes: dict[str, Any] = {"error": results.as_dict(error)}
    if isinstance(error, AgentRateLimited) or error.nothing_sent:
        wait = error.retry_after or settings.ORCHESTRATOR_BATCH_POLL_SECONDS
        changes |= {"state": BatchState.BOUND, "due_at": after(wait)}
    move(batch, BatchState.SENDING, **changes)


def _record_sending(batch: ProviderBatch, external_id: str) -> None:
    move(
        batch, BatchState.SENDING, state=BatchState.SENT, external_id=external_id, error=None,
        due_at=after(settings.ORCHESTRATOR_BATCH_POLL_SECONDS),
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


# Collecting: a batch that was sent is looked at, and its answers are taken in once it has ended.
#
# Who dies half-way leaves open items, which anyone who looks next takes in; those that were answered take no second answer.


RENEWED_EVERY = 100  # answers


def poll(batch: ProviderBatch, api: MessageBatches) -> None:
    """Take in the answers of a batch that has ended; of one that has not, look again later."""
    try:
        if not api.look(batch.external_id).ended:
            move(batch, BatchState.SENT, due_at=after(settings.ORCHESTRATOR_BATCH_POLL_SECONDS))
        elif _take_in(batch, api):
            move(batch, BatchState.SENT, state=BatchState.ENDED, ended_at=Now(), error=None)
        else:
            _look_for_another(batch)
    except (RetryableAgentError, ConfigurationError) as error:
        put_off(batch, error)
    except AgentError as error:
        lost = RetryableAgentError(f"The batch is lost: {error}", code="batch_lost")
        give_up(batch, BatchState.SENT, BatchState.ENDED, lost)


def _take_in(batch: ProviderBatch, api: MessageBatches) -> bool:
    """Settle every item by its answer; False when the answers are those of another batch."""
    with tenant_scope(batch.tenant_id):
        unanswered = {item.pk.hex: item for item in items_of(batch).defer("body", "begun")}
    strange = False
    answers = api.answers(batch.external_id, max_bytes=settings.ORCHESTRATOR_BATCH_RESULT_MAX_BYTES)
    for number, answer in enumerate(answers, 1):
        item = unanswered.pop(answer.custom_id, None)
        if item is None:
            strange = strange or bool(answer.custom_id)
            continue
        results.persistently(partial(settle_item, item, answer))
        if number % RENEWED_EVERY == 0:
            move(batch, BatchState.SENT, due_at=after(settings.ORCHESTRATOR_BATCH_LEASE_SECONDS))
    if strange and len(unanswered) == batch.size:
        return False
    for item in unanswered.values():
        if item.state in OPEN_ITEMS:
            missing = "The batch has ended without an answer to this."
            fail_item(item, RetryableAgentError(missing, code="batch_incomplete"))
    return True


def _look_for_another(batch: ProviderBatch) -> None:
    not_ours = [*batch.not_ours, batch.external_id]
    move(batch, BatchState.SENT, state=BatchState.SENDING, external_id="", not_ours=not_ours, due_at=Now())


# Tending: every batch that is due takes its next step.
#
# Anyone who tends a batch puts its next look off by a lease first; when they die, somebody else goes on after that.


PAGE = 100

STEPS = {
    BatchState.BOUND: send,
    BatchState.SENDING: find_again,
    BatchState.SENT: poll,
}


def list_due() -> QuerySet[ProviderBatch]:
    """Batches that have to be looked at, of all tenants."""
    return ProviderBatch.objects.filter(state__in=OPEN_BATCHES, due_at__lte=Now())


def tend() -> int:
    """Look after the batches that are due. One that cannot be helped does not keep the others from it. Returns how many."""
    with system_scope():
        found = list(list_due().order_by("due_at").values_list("tenant_id", "id")[:PAGE])
    for tenant_id, batch_id in found:
        try:
            tend_one(tenant_id, batch_id)
        except Exception:
            # Its lease ends, and somebody tries again.
            logger.exception("Batch not tended", extra={"action": "batch_failed", "batch": str(batch_id)})
    return len(found)


def tend_one(tenant_id: UUID, batch_id: UUID) -> None:
    """Take the batch's next step, unless somebody else has it in hand."""
    batch = _take_batch(tenant_id, batch_id)
    if batch is None:
        return
    if not _is_wanted(batch):
        _let_go(batch)
        return
    try:
        api = client_for(batch)
    except AgentError as error:
        _abandon(batch, error)
        return
    STEPS[BatchState(batch.state)](batch, api)


def client_for(batch: ProviderBatch) -> MessageBatches:
    """Raises `AgentError` when the role leads elsewhere by now. Another credential at the same place will do: keys are changed."""
    chosen = configuration.settings_for(batch.tenant_id, batch.agent_role).adapter
    return batches.client_for(chosen, batch.provider)


def _take_batch(tenant_id: UUID, batch_id: UUID) -> ProviderBatch | None:
    with tenant_scope(tenant_id):
        rows = ProviderBatch.objects.for_tenant(tenant_id).filter(pk=batch_id)
        waiting = rows.filter(state__in=OPEN_BATCHES, due_at__lte=Now())
        if not waiting.update(due_at=after(settings.ORCHESTRATOR_BATCH_LEASE_SECONDS)):
            return None
        batch: ProviderBatch = rows.get()
        drop_ended(tenant_id, items_of(batch).filter(state__in=OPEN_ITEMS))
    return batch


def _is_wanted(batch: ProviderBatch) -> bool:
    with tenant_scope(batch.tenant_id):
        return open_items(batch).exists()


def _let_go(batch: ProviderBatch) -> None:
    """Nobody waits for it any more. What the provider has of it, it need not answer."""
    if batch.state == BatchState.SENT:
        try:
            client_for(batch).cancel(batch.external_id)
        except AgentError as error:
            logger.warning(
                "Batch not cancelled",
                extra={"action": "batch_not_cancelled", "batch": str(batch.pk), "reason": error.error_code},
            )
    move(batch, BatchState(batch.state), state=BatchState.ENDED, ended_at=Now())


def _abandon(batch: ProviderBatch, error: AgentError) -> None:
    """The role leads elsewhere by now: the work goes there, and whatever the provider still has of it is lost."""
    for item in each_open(batch):
        move_to_real_time(item, str(error))
    move(batch, BatchState(batch.state), state=BatchState.ENDED, ended_at=Now(), error=results.as_dict(error))


# Leaving: what is wanted soon does not wait for a batch any longer, whether it is in one or not. A late answer counts for nothing.


LEAVING_AT_ONCE = 500

WHY = "It is wanted soon and was not answered by its batch yet; it goes on at once."


def list_leaving() -> QuerySet[BatchItem]:
    """What has to leave, of all tenants."""
    return BatchItem.objects.filter(state__in=OPEN_ITEMS, leave_at__lte=Now())


def leave() -> int:
    """Move what is due, a page of it. Returns how many."""
    with system_scope():
        items = list(list_leaving().defer("body", "begun").order_by("leave_at")[:LEAVING_AT_ONCE])
    for item in items:
        move_to_real_time(item, WHY)
    return len(items)
