"""Admin of alerts, their deliveries and notification channels, and of webhooks."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget, UnfoldAdminTextInputWidget

from activities.alerts import acknowledge, try_channel
from activities.exceptions import ActivityError
from activities.models import Activity, Alert, AlertDelivery, NotificationChannel
from activities.models.alert import AlertKind, ChannelKind, Digest
from activities.notifications import backends, digests
from activities.notifications.backends import InvalidTarget
from activities.notifications.delivery import send_again
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import RecordAdmin, SeenForm, actor_of, badge_of, link_of
from tenants.context import tenant_scope
from tenants.models.events import WebhookDelivery, WebhookEndpoint

ACKNOWLEDGE = Action(
    "acknowledge",
    "Acknowledged",
    "Marks these alerts as seen. The first person to do so is recorded.",
    icon="done",
    do=lambda request, alert, notes: acknowledge(alert.tenant_id, alert.pk, actor=actor_of(request)),
)
SEND_AGAIN = Action(
    "send-again",
    "Queued to be sent again",
    "These are sent once more. A delivery with an unknown outcome may have arrived, and would then arrive twice.",
    icon="send",
    do=lambda request, delivery, notes: _send_again(delivery),
)
TRY = Action(
    "test",
    "Test sent to",
    "A test alert is sent to these channels only.",
    title="Send a test",
    icon="send",
    do=lambda request, channel, notes: _try(channel, actor_of(request)),
)


@admin.register(Alert)
class AlertAdmin(ActionsAdmin, RecordAdmin):
    list_display = ("created_at", "title", "tenant", "kind", "weight", "acknowledged_by")
    list_filter = ("severity", "kind")
    list_disable_select_all = False
    search_fields = ("title",)
    row_actions = (ACKNOWLEDGE,)

    weight = badge_of("severity", "Severity")
    activity_link = link_of("activity_id", Activity, "Activity")


@admin.register(AlertDelivery)
class AlertDeliveryAdmin(ActionsAdmin, RecordAdmin):
    list_display = (
        "created_at",
        "alert_link",
        "tenant",
        "channel_kind",
        "channel_name",
        "situation",
        "attempts",
        "last_error",
    )
    list_filter = ("state", "channel_kind")
    list_select_related = ("alert",)
    list_disable_select_all = False
    search_fields = ("alert__title", "channel_name")
    row_actions = (SEND_AGAIN,)

    situation = badge_of("state", "State", unknown="warning")
    alert_link = link_of("alert_id", Alert, "Alert", text=lambda row: row.alert)
    channel_link = link_of("channel_id", NotificationChannel, "Channel", text=lambda row: row.channel_name)


class WriteOnlyInput(UnfoldAdminTextInputWidget):
    """A text field that never renders its value, not even when the form is rendered again with an error in another field."""

    def format_value(self, value: Any) -> str:
        return ""


class NotificationChannelForm(SeenForm):
    """Accepts a new target. The stored target is shown only as far as needed to recognise it."""

    new_target = forms.CharField(
        label="Target",
        required=False,
        max_length=2_000,
        widget=WriteOnlyInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
        help_text="A URL for slack and webhook; addresses separated by commas for email. It is never displayed again. "
        "Leave empty to keep the stored target. Use the API to renew and read a webhook's secret.",
    )
    kinds = forms.MultipleChoiceField(
        required=False,
        choices=AlertKind.choices,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="Kinds of alerts to send to this channel. None selected: all.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "digest" in self.fields:
            self.fields["digest"].required = False  # a missing value keeps the stored one

    def clean_digest(self) -> str:
        return self.cleaned_data.get("digest") or self.instance.digest or Digest.OFF

    def clean_digest_roles(self) -> list[str]:
        roles = self.cleaned_data.get("digest_roles") or []
        if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
            raise ValidationError('Enter a list of human roles, such as ["editor"].')
        return roles

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        address, kind = (values.get("new_target") or "").strip(), values.get("kind") or self.instance.kind
        if not address and not self.instance.target_sealed:
            self.add_error("new_target", "Enter the target of the alerts.")
        if kind != ChannelKind.EMAIL and values.get("digest") not in (None, "", Digest.OFF):
            self.add_error("digest", "Digests go to channels of the kind email.")
        if address and kind:
            try:
                backends.check_target(kind, address)
            except InvalidTarget as error:
                self.add_error("new_target", ValidationError(str(error)))
        return values


@admin.register(NotificationChannel)
class NotificationChannelAdmin(ActionsAdmin):
    form = NotificationChannelForm
    list_display = ("name", "kind", "tenant", "target_shown", "enabled", "created_at")
    list_filter = ("kind", "enabled")
    search_fields = ("name",)
    fields = (
        "tenant",
        "kind",
        "name",
        "enabled",
        "target_shown",
        "new_target",
        "kinds",
        "digest",
        "digest_hour",
        "digest_day",
        "digest_roles",
        "version",
    )
    readonly_fields: tuple[str, ...] = ("target_shown", "version")
    # The target is encrypted for this tenant, and is only valid for this kind.
    fixed_fields = ("tenant", "kind")
    counts_changes = True
    is_deletable = True  # deliveries keep the channel's name
    row_actions = (TRY,)

    def save_model(self, request: HttpRequest, obj: NotificationChannel, form: Any, change: bool) -> None:
        if address := form.cleaned_data["new_target"].strip():
            backends.put_target(obj, address)
        digests.plan_digest(obj, obj.tenant.timezone)
        super().save_model(request, obj, form, change)


def _send_again(delivery: AlertDelivery) -> None:
    if not send_again(delivery):
        raise ActivityError("It is still in progress, or has arrived.", code="nothing_to_send")


def _try(channel: NotificationChannel, actor: str) -> None:
    if not channel.enabled:
        raise ActivityError("The channel is switched off.", code="nothing_to_send")
    with tenant_scope(channel.tenant_id):
        try_channel(channel, actor=actor)


# Webhooks and their deliveries, read-only: tenants change them through the API. Secrets are never shown.


@admin.register(WebhookEndpoint)
class WebhookEndpointAdmin(RecordAdmin):
    list_display = ("url", "tenant", "description", "enabled", "off_reason", "failures", "failing_since")
    list_filter = ("enabled", "off_reason")
    search_fields = ("url", "description")


@admin.register(WebhookDelivery)
class WebhookDeliveryAdmin(RecordAdmin):
    list_display = (
        "created_at",
        "webhook",
        "tenant",
        "kind",
        "situation",
        "attempts",
        "response_status",
        "error",
    )
    list_filter = ("state", "kind")
    list_select_related = ("endpoint",)
    search_fields = ("endpoint__url",)
    ordering = ("-created_at",)

    situation = badge_of("state", "State", dropped="warning")
    webhook = link_of("endpoint_id", WebhookEndpoint, "Webhook", text=lambda row: row.endpoint)
