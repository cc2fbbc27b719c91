"""API tokens and the answers kept for idempotency keys: neither the secret nor a kept answer can be read here."""

from __future__ import annotations

from django.contrib import admin
from django.utils.safestring import SafeString
from unfold.decorators import display

from tenants import clock, tokens
from tenants.admin.bases import RecordAdmin, TenantFilter, badge
from tenants.exceptions import TenantError
from tenants.models import ApiToken, IdempotentRequest

from .actions import Action, ActionsAdmin

REVOKE = Action(
    "revoke_selected",
    "Revoke",
    "Revoked",
    "Within a second nobody can use these tokens any more. This cannot be undone.",
    (TenantError,),
    danger=True,
    path="revoke",
    icon="block",
    do=lambda request, token, notes: tokens.revoke(token),
)


@admin.register(ApiToken)
class ApiTokenAdmin(ActionsAdmin, RecordAdmin):
    list_display = ("name", "tenant", "role", "prefix", "state", "expires_at", "last_used_at", "created_at")
    list_filter = (TenantFilter, "role", "platform")
    list_select_related = ("tenant",)
    search_fields = ("name", "prefix", "tenant__slug")
    fields = (
        "name", "tenant", "role", "prefix", "scopes", "platform", "state", "expires_at", "revoked_at", "last_used_at", "created_at",
    )  # fmt: skip
    readonly_fields = fields
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
    list_filter = (TenantFilter,)
    list_select_related = ("tenant",)
    # Without the answer's body: it may hold what only its caller should see.
    fields = ("id", "tenant", "status_code", "digest", "request_digest", "created_at")
