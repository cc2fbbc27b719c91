"""Mailboxes: posts items, takes them in batches, and lists them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSetMixin

from activities import dead_letters
from activities.exceptions import MailboxError, NotFound
from activities.mailboxes import consumer, producer
from activities.mailboxes.consumer import TakeOptions
from activities.mailboxes.producer import NewItem
from activities.models import Mailbox, MailboxItem
from activities.models.mailbox import ItemKind, ItemSource, ItemState
from activities.schemas import MailboxKey
from agents import configuration
from agents.api.role_names import RoleFilter, RoleName
from tenants import clock
from tenants.api.documentation import command, operation, posting
from tenants.api.etags import DigestEtag
from tenants.api.filters import StrictFilterSet
from tenants.api.serializers import (
    OPTIONAL,
    EmptySerializer,
    Flag,
    Json,
    Moment,
    Number,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    Whole,
    read,
)
from tenants.api.views import TenantView

LONGEST_LEASE = 86_400  # seconds
LONGEST_WINDOW = 1_000  # milliseconds; the request waits as long
LARGEST_BATCH = 100


@extend_schema_field({"type": "string"})  # another body has a `source` with other words
class SourceField(OneOf):
    """Who says it."""


class NewItemSerializer(StrictSerializer):
    """A new item, with `content` (JSON, such as a message), `text`, or both."""

    kind = OneOf(choices=ItemKind.values)
    content = Json(**OPTIONAL)
    text = Text(trim_whitespace=False, allow_blank=True, **OPTIONAL)
    source = SourceField(
        choices=ItemSource.values, help_text="user, system or hook. Default: user.", **OPTIONAL
    )  # type: ignore[assignment]
    priority = Whole(min_value=0, max_value=9, help_text="Lower values come first. Default: 5.", **OPTIONAL)
    run_after = Moment(**OPTIONAL)
    max_attempts = Whole(min_value=1, max_value=50, help_text="Default: 3.", **OPTIONAL)
    backoff_multiplier = Number(min_value=1, max_value=10, help_text="Default: 2.", **OPTIONAL)
    max_backoff_ms = Whole(min_value=0, max_value=86_400_000, help_text="Default: 300000.", **OPTIONAL)
    is_coalescable = Flag(
        help_text="Whether it may be delivered together with other items. Task notifications never are.",
        **OPTIONAL,
    )
    scope_key = Text(
        max_length=200,
        allow_blank=True,
        help_text="Only items with the same scope key are delivered together. Default: empty.",
        **OPTIONAL,
    )
    client_message_id = Text(
        max_length=200,
        help_text="A second item with the same id counts as a repetition of the first.",
        **OPTIONAL,
    )
    agent_role = RoleName(
        max_length=63,
        help_text="The role that consumes the mailbox. Without a role, clients take its items.",
        **OPTIONAL,
    )

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        errors: dict[str, list[str]] = {}
        if "content" not in attrs and not attrs.get("text") and "text" not in invalid:
            errors["content"] = ["is required, unless text is given"]
        if attrs.get("kind") == ItemKind.TASK_NOTIFICATION and attrs.get("is_coalescable"):
            errors["is_coalescable"] = [
                "cannot be true for a task_notification: each is delivered separately"
            ]
        role = attrs.get("agent_role")
        if role and (refused := configuration.errors_of_role(role, self.context["tenant_id"])):
            errors["agent_role"] = refused
        return errors | _errors_of_key(self.context["key"])


def _errors_of_key(key: str) -> dict[str, Any]:
    """Return the error of a key in an address, where a body would trim it."""
    try:
        is_trimmed = MailboxKey().run_validation(key) == key
    except serializers.ValidationError as error:
        return {"key": error.detail}
    return {} if is_trimmed else {"key": ["must not begin or end with a space"]}


def new_item(attrs: dict[str, Any]) -> NewItem:
    """Return the item to post for validated data."""
    backoff = {}
    if "backoff_multiplier" in attrs:
        backoff["multiplier"] = attrs["backoff_multiplier"]
    if "max_backoff_ms" in attrs:
        backoff["max_seconds"] = attrs["max_backoff_ms"] / 1000
    plain = {
        name: value for name, value in attrs.items() if name not in ("backoff_multiplier", "max_backoff_ms")
    }
    return NewItem(**plain, backoff=backoff)


class TakeSerializer(StrictSerializer):
    """Which consumer takes a batch, how large, and for how long."""

    consumer = Text(max_length=200)
    window_ms = Whole(
        min_value=0,
        max_value=LONGEST_WINDOW,
        help_text="For how long after the first item others may join the batch, in milliseconds; the answer waits for "
        "that time. Default: 50.",
        **OPTIONAL,
    )
    lease_seconds = Number(min_value=0.1, max_value=LONGEST_LEASE, help_text="Default: 300.", **OPTIONAL)
    limit = Whole(
        min_value=1,
        max_value=LARGEST_BATCH,
        help_text="The maximum number of items. Default: 10.",
        **OPTIONAL,
    )


def take_options_of(attrs: dict[str, Any]) -> TakeOptions:
    return TakeOptions(
        consumer=attrs["consumer"],
        lease=timedelta(seconds=attrs.get("lease_seconds", 300)),
        window=timedelta(milliseconds=attrs.get("window_ms", 50)),
        limit=attrs.get("limit", 10),
    )


class CompletedSerializer(StrictSerializer):
    """The result of a batch."""

    result = Json(**OPTIONAL)


class FailedSerializer(StrictSerializer):
    """Why a batch has failed."""

    error = Json(help_text="Text, or an object with `message`.")
    retryable = Flag(help_text="Whether another attempt may succeed. Default: true.", **OPTIONAL)


def error_of(error: Any) -> dict[str, Any]:
    """Return the error as an object, which is how it is stored."""
    return dict(error) if isinstance(error, dict) else {"message": str(error)}


class BeatSerializer(StrictSerializer):
    """A new end of the lease."""

    lease_seconds = Number(
        min_value=0.1, max_value=LONGEST_LEASE, help_text="Seconds from now. Default: 300.", **OPTIONAL
    )


class MailboxSerializer(serializers.Serializer[Any]):
    """The mailbox of one conversation, with the numbers of its items."""

    id = serializers.UUIDField()
    key = serializers.CharField()
    agent_role = serializers.CharField(
        allow_null=True, help_text="The role that consumes it; null if clients take its items."
    )
    pending = serializers.IntegerField()
    claimed = serializers.IntegerField(
        help_text="Items that a consumer has taken, or that an agent's run handles."
    )
    failed = serializers.IntegerField(help_text="Items that have failed permanently.")
    oldest_wait_seconds = serializers.FloatField(allow_null=True)
    created_at = serializers.DateTimeField()


class ConsumerSerializer(serializers.Serializer[Any]):
    """A client that has taken items and has not finished them."""

    consumer = serializers.CharField()
    claimed = serializers.IntegerField(help_text="Number of items.")
    since = serializers.DateTimeField(help_text="When it took the first of them.")
    until = serializers.DateTimeField(help_text="When its first lease ends, unless the lease is extended.")


class OneMailboxSerializer(MailboxSerializer):
    """A mailbox as in the list, with its current consumers."""

    consumers = ConsumerSerializer(many=True)


class ItemSerializer(ResponseSerializer):
    """An item of a mailbox."""

    id = serializers.UUIDField()
    kind = serializers.CharField(help_text="message, task_notification, approval_result or overlay_action")
    content = serializers.JSONField()
    text = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]  # a field, not the attribute
    priority = serializers.IntegerField()
    is_coalescable = serializers.BooleanField()
    scope_key = serializers.CharField()
    client_message_id = serializers.CharField(allow_null=True)
    agent_role = serializers.CharField(allow_null=True)
    status = serializers.CharField(
        source="current_state", help_text="pending, claimed, done, failed or cancelled"
    )
    attempts = serializers.IntegerField(
        source="tries",
        help_text="How often it was delivered to a consumer, or the attempts so far of the activity in which an agent receives it.",
    )
    max_attempts = serializers.IntegerField()
    run_after = serializers.DateTimeField(allow_null=True)
    due_at = serializers.DateTimeField(allow_null=True, help_text="It is not delivered before this time.")
    activity = serializers.UUIDField(
        source="activity_id", allow_null=True, help_text="The activity in which an agent receives it."
    )
    run = serializers.UUIDField(
        source="run_id", allow_null=True, help_text="The run that receives it, or has received it."
    )
    batch = serializers.UUIDField(source="batch_id", allow_null=True)
    error = serializers.JSONField()
    created_at = serializers.DateTimeField()
    claimed_at = serializers.DateTimeField(allow_null=True)
    done_at = serializers.DateTimeField(allow_null=True)


class TakenItemSerializer(ResponseSerializer):
    """An item as a consumer receives it."""

    id = serializers.UUIDField()
    kind = serializers.CharField()
    scope_key = serializers.CharField()
    content = serializers.JSONField()
    text = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]  # a field, not the attribute
    priority = serializers.IntegerField()
    client_message_id = serializers.CharField(allow_null=True)
    attempts = serializers.IntegerField(help_text="Number of attempts, including this one.")
    max_attempts = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class TakenSerializer(serializers.Serializer[Any]):
    """A batch, which belongs to the consumer until `leased_until`."""

    batch_id = serializers.UUIDField()
    items = TakenItemSerializer(many=True)
    merged_count = serializers.IntegerField(help_text="Number of its items.")
    queue_length_after = serializers.IntegerField(help_text="How many more items are due.")
    fence = serializers.IntegerField(help_text="A number that increases with every batch of the mailbox.")
    leased_until = serializers.DateTimeField()


class MailboxBatchSerializer(ResponseSerializer):
    """The state of a batch."""

    batch_id = serializers.UUIDField(source="id")
    consumer = serializers.CharField()
    state = serializers.CharField(help_text="open, completed, failed or expired")
    size = serializers.IntegerField()
    fence = serializers.IntegerField()
    leased_until = serializers.DateTimeField()
    result = serializers.JSONField()
    error = serializers.JSONField()
    ended_at = serializers.DateTimeField(allow_null=True)


class MailboxPart(TenantView):
    """Base of the views of one mailbox."""

    queryset: Any = Mailbox.objects
    scope = "mailboxes"
    scope_of_one = "key"  # a consumer's token may be limited to one mailbox

    def find_address(self) -> QuerySet[Any] | None:
        key = self.kwargs.get("key")
        return None if key is None else Mailbox.objects.for_tenant(self.tenant_id).filter(key=key)

    def mailbox(self, key: str) -> Mailbox:
        """Raises `NotFound`."""
        rows = Mailbox.objects.for_tenant(self.tenant_id).filter(key=key)
        mailbox: Mailbox = rows.first_or_raise(NotFound("mailbox", key))
        return mailbox

    def show(self, mailboxes: Iterable[Mailbox]) -> list[dict[str, Any]]:
        mailboxes, now = list(mailboxes), clock.now()
        figures = producer.counts_of(self.tenant_id, mailboxes)
        return [_serialize_mailbox(mailbox, figures[mailbox.pk], now) for mailbox in mailboxes]


def _serialize_mailbox(mailbox: Mailbox, figures: dict[str, Any], now: datetime) -> dict[str, Any]:
    counts = {name: figures[name] for name in ("pending", "claimed", "failed")}
    return {
        "id": mailbox.pk, "key": mailbox.key, "agent_role": mailbox.agent_role, **counts,
        "oldest_wait_seconds": producer.seconds_since(figures["oldest_pending_at"], now), "created_at": mailbox.created_at,
    }  # fmt: skip


class MailboxFilter(StrictFilterSet):
    agent_role = RoleFilter()


class MailboxList(ViewSetMixin, MailboxPart):
    """A mailbox exists from its first item on, or from the first work or subagent that names it."""

    serializer_class = MailboxSerializer
    filterset_class = MailboxFilter
    search_fields = ("key",)
    ordering = ("-created_at", "-id")

    @operation("Mailboxes, newest first", answer=MailboxSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(self.show(page))


class MailboxDetail(DigestEtag, MailboxPart):
    volatile = ("oldest_wait_seconds",)

    @operation("One mailbox", answer=OneMailboxSerializer, refusals=(404,))
    def get(self, request: Request, key: str) -> Response:
        mailbox = self.mailbox(key)
        consumers = producer.consumers_of(self.tenant_id, mailbox)
        return Response(OneMailboxSerializer({**self.show([mailbox])[0], "consumers": consumers}).data)


class ItemFilter(StrictFilterSet):
    kind = django_filters.ChoiceFilter(choices=ItemKind.choices)
    status = django_filters.ChoiceFilter(field_name="current_state", choices=ItemState.choices)


class MailboxItems(ViewSetMixin, MailboxPart):
    """Items in all states, as long as they are stored. The first one creates the mailbox."""

    queryset = MailboxItem.objects
    serializer_class = ItemSerializer
    filterset_class = ItemFilter
    ordering = ("-created_at", "-id")

    def find_address(self) -> QuerySet[Any] | None:
        return None if self.action == "create" else super().find_address()

    @operation("The items of a mailbox, newest first", answer=ItemSerializer(many=True), refusals=(400, 404))
    def list(self, request: Request, key: str) -> Response:
        rows: QuerySet[Any] = producer.items_of(self.tenant_id, self.mailbox(key))
        return self.answer_page(rows, ItemSerializer)

    @posting(
        "Post an item",
        NewItemSerializer,
        refusals=(404,),
        answers={201: ItemSerializer, 200: ItemSerializer},
    )
    def create(self, request: Request, key: str) -> Response:
        """Creates the mailbox if it does not exist. A repetition with the same `client_message_id` gets 200 with the first item."""
        new = new_item(read(NewItemSerializer, request.data, key=key, tenant_id=self.tenant_id))
        posted = producer.post(self.tenant_id, key, new, actor=self.principal.actor)
        item = producer.item_with_id(self.tenant_id, posted.item.pk)
        return Response(ItemSerializer(item).data, status=201 if posted.created else 200)


class ItemPart(DigestEtag, MailboxPart):
    def item(self, key: str, item_id: UUID) -> Any:
        """Raises `NotFound`."""
        items: Any = producer.items_of(self.tenant_id, self.mailbox(key))
        return items.get_or_raise(NotFound, f"item in the mailbox {key}", item_id)

    def change(self, key: str, item_id: UUID, verb: str, change: Callable[..., bool]) -> Response:
        """Change the item and return it. Raises `MailboxError` if its state does not allow the change."""
        before = self.item(key, item_id)
        self.refuse_changed(ItemSerializer(before).data)
        if not change(self.tenant_id, before.pk, actor=self.principal.actor):
            item = self.item(key, item_id)
            hint = ""
            if item.activity_id:
                hint = f" An agent handles it in activity {item.activity_id}: {verb} that activity instead."
            raise MailboxError(
                f"The item is {item.current_state}, so you cannot {verb} it.{hint}", code="item_refused"
            )
        return Response(ItemSerializer(self.item(key, item_id)).data)


class MailboxOneItem(ItemPart):
    @operation("One item", answer=ItemSerializer, refusals=(404,))
    def get(self, request: Request, key: str, item_id: UUID) -> Response:
        return Response(ItemSerializer(self.item(key, item_id)).data)


class ItemRetry(ItemPart):
    @command("Retry a failed item", EmptySerializer, ItemSerializer)
    def post(self, request: Request, key: str, item_id: UUID) -> Response:
        """It gets its full number of attempts, and its dead letter is closed."""
        return self.change(key, item_id, "retry", dead_letters.retry_item)


class ItemCancel(ItemPart):
    @command("Cancel a pending or failed item", EmptySerializer, ItemSerializer)
    def post(self, request: Request, key: str, item_id: UUID) -> Response:
        """It is not delivered any more, and its dead letter is closed."""
        return self.change(key, item_id, "cancel", dead_letters.cancel_item)


class MailboxTake(MailboxPart):
    @posting("Take a batch", TakeSerializer, refusals=(404,), answers={200: TakenSerializer, 204: None})
    def post(self, request: Request, key: str) -> Response:
        """204 if nothing is due. The batch belongs to the consumer until its lease ends; then its items return to the mailbox, with one
        attempt used up.

        Concurrent consumers get different items. A task notification is delivered alone; other due items of one `scope_key` are
        delivered together if they are coalescable."""
        taken = consumer.take(self.tenant_id, key, take_options_of(read(TakeSerializer, request.data)))
        if taken is None:
            return Response(status=204)
        return Response(
            {
                "batch_id": taken.batch.pk,
                "items": TakenItemSerializer(taken.items, many=True).data,
                "merged_count": len(taken.items),
                "queue_length_after": taken.remaining,
                "fence": taken.batch.fence,
                "leased_until": taken.batch.leased_until,
            }
        )


class BatchCompleted(MailboxPart):
    @posting("Complete a batch", CompletedSerializer, MailboxBatchSerializer, refusals=(404,))
    def post(self, request: Request, key: str, batch_id: UUID) -> Response:
        """May be repeated. 409 `lease_lost` if its items have already returned to the mailbox."""
        result = read(CompletedSerializer, request.data).get("result")
        batch = consumer.complete_batch(self.tenant_id, key, batch_id, result=result, now=clock.now())
        return Response(MailboxBatchSerializer(batch).data)


class BatchFailed(MailboxPart):
    @posting("Report that a batch has failed", FailedSerializer, MailboxBatchSerializer, refusals=(404,))
    def post(self, request: Request, key: str, batch_id: UUID) -> Response:
        """Its items are due again after about 1, 2, 4, ... seconds, until their attempts are used up. May be repeated."""
        body = read(FailedSerializer, request.data)
        batch = consumer.fail_batch(
            self.tenant_id, key, batch_id, error=error_of(body["error"]), retryable=body.get("retryable", True), now=clock.now(),
        )  # fmt: skip
        return Response(MailboxBatchSerializer(batch).data)


class BatchHeartbeat(MailboxPart):
    @posting("Extend the lease of a batch", BeatSerializer, MailboxBatchSerializer, refusals=(404,))
    def post(self, request: Request, key: str, batch_id: UUID) -> Response:
        """Never shortens the lease. 409 `lease_lost`: stop working, because the items have returned to the mailbox."""
        lease = timedelta(seconds=read(BeatSerializer, request.data).get("lease_seconds", 300))
        batch = consumer.extend_batch(self.tenant_id, key, batch_id, lease=lease, now=clock.now())
        return Response(MailboxBatchSerializer(batch).data)
