"""Mailboxes: posted to, taken from in batches, looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from activities import deadletters, mailboxes
from activities.api.decisions import EmptySerializer
from activities.api.mailbox_bodies import (
    LONGEST_KEY,
    BeatSerializer,
    CompletedSerializer,
    FailedSerializer,
    NewItemSerializer,
    TakeSerializer,
    error_of,
    new_item,
    wish_of,
)
from activities.api.mailboxes_shown import (
    ItemSerializer,
    MailboxBatchSerializer,
    MailboxSerializer,
    TakenItemSerializer,
    TakenSerializer,
)
from activities.exceptions import ItemRefused, MailboxNotFound
from activities.mailboxes import reading
from activities.models import Mailbox, MailboxItem
from activities.models.mailbox import ItemKind, ItemState
from agents.api.digests import Digested
from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from agents.api.strict import read
from tenants import clock
from tenants.api.faults import InvalidRequest
from tenants.api.views import TenantView


class MailboxPart(TenantView):
    """Something of the mailbox that `key` of the address names."""

    queryset: Any = Mailbox.objects
    scope = "mailboxes"

    def mailbox(self, key: str) -> Mailbox:
        """Raises `MailboxNotFound`."""
        found: Mailbox | None = Mailbox.objects.for_tenant(self.tenant_id).filter(key=key).first()
        if found is None:
            raise MailboxNotFound(f"There is no mailbox {key}.")
        return found

    def shown(self, found: Iterable[Mailbox]) -> list[dict[str, Any]]:
        found, now = list(found), clock.now()
        figures = reading.figures(self.tenant_id, found)
        return [_shown(mailbox, figures[mailbox.pk], now) for mailbox in found]


def _shown(mailbox: Mailbox, figures: dict[str, Any], now: datetime) -> dict[str, Any]:
    counts = {name: figures[name] for name in ("pending", "claimed", "failed")}
    return {
        "id": mailbox.pk, "key": mailbox.key, "agent_role": mailbox.agent_role, **counts,
        "oldest_wait_seconds": reading.waited(figures["oldest_pending_at"], now), "created_at": mailbox.created_at,
    }  # fmt: skip


class MailboxFilter(django_filters.FilterSet):
    agent_role = django_filters.CharFilter()

    class Meta:
        model = Mailbox
        fields: tuple[str, ...] = ()


class MailboxList(ViewSetMixin, MailboxPart):
    """A mailbox is there from the first item on."""

    serializer_class = MailboxSerializer
    filterset_class = MailboxFilter
    search_fields = ("key",)
    ordering = ("-created_at", "-id")

    @operation("Mailboxes, newest first", answer=MailboxSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(self.shown(page))


class MailboxDetail(Digested, MailboxPart):
    pagination_class = None
    passing = ("oldest_wait_seconds",)

    @operation("One mailbox", answer=MailboxSerializer, refusals=(404,))
    def get(self, request: Request, key: str) -> Response:
        return Response(self.shown([self.mailbox(key)])[0])


class ItemFilter(django_filters.FilterSet):
    kind = django_filters.ChoiceFilter(choices=ItemKind.choices)
    status = django_filters.ChoiceFilter(field_name="stands", choices=ItemState.choices)

    class Meta:
        model = MailboxItem
        fields: tuple[str, ...] = ()


class MailboxItems(ViewSetMixin, MailboxPart):
    """Whatever became of it, as long as it is kept."""

    queryset = MailboxItem.objects
    serializer_class = ItemSerializer
    filterset_class = ItemFilter
    ordering = ("-created_at", "-id")

    @operation("What was said, newest first", answer=ItemSerializer(many=True), refusals=(400, 404))
    def list(self, request: Request, key: str) -> Response:
        rows: QuerySet[Any] = reading.items_of(self.tenant_id, self.mailbox(key))
        page = self.paginate_queryset(self.filter_queryset(rows)) or []
        return self.get_paginated_response(ItemSerializer(page, many=True).data)

    @operation(
        "Say something",
        request=NewItemSerializer,
        answers={201: ItemSerializer, 200: ItemSerializer},
        refusals=(400, 404, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def create(self, request: Request, key: str) -> Response:
        """Makes the mailbox when there is none. Said again under its `client_message_id`: 200 with the first item."""
        if len(key) > LONGEST_KEY:
            raise InvalidRequest([("key", f"must not be longer than {LONGEST_KEY} characters")])
        new = new_item(read(NewItemSerializer, request.data))
        posted = mailboxes.post(self.tenant_id, key, new, actor=self.principal.actor)
        shown = ItemSerializer(reading.item(self.tenant_id, posted.item.pk)).data
        return Response(shown, status=201 if posted.created else 200)


class ItemPart(Digested, MailboxPart):
    pagination_class = None

    def item(self, key: str, item_id: UUID) -> Any:
        """Raises `MailboxNotFound`."""
        found = reading.items_of(self.tenant_id, self.mailbox(key)).filter(pk=item_id).first()
        if found is None:
            raise MailboxNotFound(f"There is no item {item_id} in the mailbox {key}.")
        return found

    def changed(self, key: str, item_id: UUID, verb: str, change: Callable[..., bool]) -> Response:
        """What became of it. Raises `ItemRefused` when it stands otherwise than the change needs."""
        before = self.item(key, item_id)
        self.refuse_changed(ItemSerializer(before).data)
        if not change(self.tenant_id, before.pk, actor=self.principal.actor):
            found = self.item(key, item_id)
            agents = found.activity_id
            its = f" An agent hears of it in activity {agents}: {verb} that." if agents else ""
            raise ItemRefused(f"The item is {found.stands}, so you cannot {verb} it.{its}")
        return Response(ItemSerializer(self.item(key, item_id)).data)


class MailboxOneItem(ItemPart):
    @operation("One item", answer=ItemSerializer, refusals=(404,))
    def get(self, request: Request, key: str, item_id: UUID) -> Response:
        return Response(ItemSerializer(self.item(key, item_id)).data)


class ItemRetry(ItemPart):
    @operation(
        "Let a failed item be taken again",
        request=EmptySerializer,
        answer=ItemSerializer,
        refusals=(404, 409),
        parameters=(IDEMPOTENCY_KEY, IF_MATCH),
    )
    def post(self, request: Request, key: str, item_id: UUID) -> Response:
        """With all its attempts; its dead letter is closed."""
        read(EmptySerializer, request.data)
        return self.changed(key, item_id, "retry", deadletters.retry_item)


class ItemCancel(ItemPart):
    @operation(
        "Cancel an item that waits or has failed", request=EmptySerializer, answer=ItemSerializer, refusals=(404, 409),
        parameters=(IDEMPOTENCY_KEY, IF_MATCH),
    )  # fmt: skip
    def post(self, request: Request, key: str, item_id: UUID) -> Response:
        """Nobody takes it any more; its dead letter is closed."""
        read(EmptySerializer, request.data)
        return self.changed(key, item_id, "cancel", deadletters.cancel_item)


class MailboxTake(MailboxPart):
    pagination_class = None

    @operation(
        "Take a batch",
        request=TakeSerializer,
        answers={200: TakenSerializer, 204: None},
        refusals=(400, 404, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def post(self, request: Request, key: str) -> Response:
        """204 when nothing is due. The batch is the consumer's until its lease ends; then its items go back, an attempt used up.

        Of two takers at once each gets other items. A task notification comes alone, everything else that is due together."""
        taken = mailboxes.take(self.tenant_id, key, wish_of(read(TakeSerializer, request.data)))
        if taken is None:
            return Response(status=204)
        return Response(
            {
                "batch_id": taken.batch.pk,
                "items": TakenItemSerializer(taken.items, many=True).data,
                "merged_count": len(taken.items),
                "queue_length_after": taken.left,
                "fence": taken.batch.fence,
                "leased_until": taken.batch.leased_until,
            }
        )


class BatchPart(MailboxPart):
    pagination_class = None


class BatchCompleted(BatchPart):
    @operation(
        "A batch is done",
        request=CompletedSerializer,
        answer=MailboxBatchSerializer,
        refusals=(400, 404, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def post(self, request: Request, key: str, batch_id: UUID) -> Response:
        """May be repeated. 409 `lease_lost` when its items went back before."""
        result = read(CompletedSerializer, request.data).get("result")
        batch = mailboxes.completed(self.tenant_id, key, batch_id, result=result, now=clock.now())
        return Response(MailboxBatchSerializer(batch).data)


class BatchFailed(BatchPart):
    @operation(
        "A batch has failed",
        request=FailedSerializer,
        answer=MailboxBatchSerializer,
        refusals=(400, 404, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def post(self, request: Request, key: str, batch_id: UUID) -> Response:
        """Its items are due again after about 1, 2, 4, ... seconds, until their attempts are used up. May be repeated."""
        body = read(FailedSerializer, request.data)
        batch = mailboxes.failed(
            self.tenant_id, key, batch_id, error=error_of(body["error"]), retryable=body.get("retryable", True), now=clock.now(),
        )  # fmt: skip
        return Response(MailboxBatchSerializer(batch).data)


class BatchHeartbeat(BatchPart):
    @operation(
        "The consumer is still at it",
        request=BeatSerializer,
        answer=MailboxBatchSerializer,
        refusals=(400, 404, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def post(self, request: Request, key: str, batch_id: UUID) -> Response:
        """Makes its lease longer, never shorter. 409 `lease_lost`: stop, somebody else has its items."""
        lease = timedelta(seconds=read(BeatSerializer, request.data).get("lease_seconds", 300))
        batch = mailboxes.extended(self.tenant_id, key, batch_id, lease=lease, now=clock.now())
        return Response(MailboxBatchSerializer(batch).data)
