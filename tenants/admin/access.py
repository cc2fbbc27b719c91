"""The admin of access: members with their second factors and saved views, API tokens, and the external channels that agents need.

It displays neither the secret of a token nor the stored answer for an idempotency key. Buttons change the status of a channel.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextInputWidget

from tenants import channels, clock, tokens
from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import NOTHING, PlatformAdmin, RecordAdmin, SeenForm, badge
from tenants.admin.permissions import is_superuser
from tenants.exceptions import TenantError
from tenants.models import ApiToken, Channel, IdempotentRequest, Membership, Passkey, SecondFactor
from tenants.models.access import SavedView


class MembershipForm(SeenForm):
    """A form with human roles as words instead of a JSON list."""

    human_roles = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="The human roles whose inbox items this person gets, separated by commas: editor, legal. Empty: none.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["human_roles"] = ", ".join(self.instance.human_roles)

    def clean_human_roles(self) -> list[str]:
        return [word for part in self.cleaned_data["human_roles"].split(",") if (word := part.strip())]


@admin.register(Membership)
class MembershipAdmin(PlatformAdmin):
    form = MembershipForm
    list_display = ("user", "tenant", "role", "roles_in_words", "created_at")
    list_filter = ("role",)
    search_fields = ("user__username", "user__email")
    autocomplete_fields = ("user",)

    def _may(self, request: HttpRequest, row: Any, *, write: bool) -> bool:
        """Choosing a member needs the names of all people of the platform, so only those who may see them can add one. Admins of a tenant
        change its members in the console, which makes sure that a tenant keeps an admin."""
        return super()._may(request, row, write=write) and (is_superuser(request) or not write)

    @display(description="Human roles")
    def roles_in_words(self, membership: Membership) -> str:
        return ", ".join(membership.human_roles) or NOTHING


RESET = Action(
    "reset",
    "Reset",
    "The codes of the app and the recovery codes become invalid. If a second factor is required, the person sets up a new one "
    "at the next sign-in, which then needs only the password: make sure that the request really comes from them.",
    danger=True,
    icon="lock_reset",
    # By its id, because the message afterwards still needs the row.
    do=lambda request, factor, notes: SecondFactor.objects.filter(pk=factor.pk).delete(),
)


@admin.register(SecondFactor)
class SecondFactorAdmin(ActionsAdmin, RecordAdmin):
    """The people with a second factor. Neither its secret nor its recovery codes are displayed."""

    list_display = ("user", "confirmed_at", "created_at")
    search_fields = ("user__username", "user__email")
    fields = ("user", "confirmed_at", "created_at")
    row_actions = (RESET,)


@admin.register(Passkey)
class PasskeyAdmin(RecordAdmin):
    list_display = ("name", "owner", "created_at", "used_at")
    list_select_related = ("factor__user",)
    search_fields = ("name", "factor__user__username", "factor__user__email")
    fields = ("name", "owner", "created_at", "used_at")

    @admin.display(description="Owner", ordering="factor__user__username")
    def owner(self, passkey: Passkey) -> str:
        return str(passkey.factor.user)


@admin.register(SavedView)
class SavedViewAdmin(RecordAdmin):
    list_display = ("name", "page", "tenant", "membership", "created_at")
    list_filter = ("page",)
    list_select_related = ("membership__user",)
    search_fields = ("name",)


def _revoke(request: HttpRequest, token: ApiToken, notes: str) -> None:
    if not tokens.revoke(token):
        raise TenantError("it was already revoked.", code="already_revoked")


REVOKE = Action(
    "revoke",
    "Revoked",
    "Within a second nobody can use these tokens any more. This cannot be undone.",
    danger=True,
    icon="block",
    do=_revoke,
)


@admin.register(ApiToken)
class ApiTokenAdmin(ActionsAdmin, RecordAdmin):
    list_display = ("name", "tenant", "role", "prefix", "state", "expires_at", "last_used_at", "created_at")
    list_filter = ("role", "platform")
    search_fields = ("name", "prefix")
    fields = (
        "name", "tenant", "role", "prefix", "scopes", "platform", "state", "expires_at", "revoked_at", "last_used_at", "created_at",
    )  # fmt: skip
    row_actions = (REVOKE,)

    @display(description="State")
    def state(self, token: ApiToken) -> SafeString:
        if token.revoked_at:
            return badge("revoked", "danger")
        expired = token.expires_at and token.expires_at <= clock.now()
        return badge("expired", "warning") if expired else badge("active", "success")


@admin.register(IdempotentRequest)
class IdempotentRequestAdmin(RecordAdmin):
    list_display = ("created_at", "tenant", "status_code", "digest")
    # Without the answer's body, which only its caller may see.
    fields = ("id", "tenant", "status_code", "digest", "request_digest", "created_at")


EXPIRE = Action(
    "expire",
    "Marked as expired",
    "Agents learn that they cannot use these channels, and people are alerted.",
    title="Mark as expired",
    danger=True,
    icon="link_off",
    do=lambda request, channel, notes: channels.expire(channel.tenant_id, channel.pk),
)
REACTIVATE = Action(
    "reactivate",
    "Reactivated",
    "Use this after somebody has signed in there again: agents may use these channels. A past expiry time is removed.",
    icon="link",
    do=lambda request, channel, notes: channels.reactivate(channel.tenant_id, channel.pk),
)
DISABLE = Action(
    "disable",
    "Switched off",
    "Agents cannot use these channels until they are reactivated. Nobody is alerted.",
    title="Switch off",
    danger=True,
    icon="block",
    do=lambda request, channel, notes: channels.disable(channel.tenant_id, channel.pk),
)


@admin.register(Channel)
class ChannelAdmin(ActionsAdmin):
    list_display = ("name", "kind", "tenant", "standing", "expires_at", "status_since")
    list_filter = ("status",)
    search_fields = ("name", "kind")
    fields = ("tenant", "kind", "name", "standing", "status_since", "expires_at", "details", "version")
    readonly_fields: tuple[str, ...] = ("standing", "status_since", "version")
    row_actions = (EXPIRE, REACTIVATE, DISABLE)
    fixed_fields = ("tenant",)
    counts_changes = True
    is_deletable = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Channel]:
        return super().get_queryset(request).annotate(standing=channels.STANDING)

    @display(description="Status")
    def standing(self, channel: Channel) -> SafeString:
        kinds = {"active": "success", "expired": "danger"}
        status = getattr(channel, "standing", channel.status)
        return badge(status, kinds.get(status))
