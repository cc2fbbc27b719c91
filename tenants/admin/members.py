"""Who acts for which tenant, and the views that they keep."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextInputWidget

from tenants.admin.actions import Action, ActionsAdmin
from tenants.admin.bases import NOTHING, PlatformAdmin, RecordAdmin, TenantFilter
from tenants.admin.permissions import is_superuser
from tenants.exceptions import TenantError
from tenants.models import Membership, Passkey, SecondFactor
from tenants.models.saved_views import SavedView


class MembershipForm(forms.ModelForm):
    """Human roles as words instead of a list in JSON."""

    human_roles = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Whose inbox items are theirs, separated by commas: editor, legal. Empty: none.",
    )

    class Meta:
        model = Membership
        fields = ("tenant", "user", "role", "human_roles")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["human_roles"] = ", ".join(self.instance.human_roles)

    def clean_human_roles(self) -> list[str]:
        return [word for part in self.cleaned_data["human_roles"].split(",") if (word := part.strip())]


@admin.register(Membership)
class MembershipAdmin(PlatformAdmin):
    form = MembershipForm
    list_display = ("user", "tenant", "role", "roles_in_words", "created_at")
    list_filter = (TenantFilter, "role")
    list_select_related = ("tenant", "user")
    search_fields = ("user__username", "user__email", "tenant__slug")
    autocomplete_fields = ("tenant", "user")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Who may choose among all people of the platform sees who they are."""
        return is_superuser(request) and super().has_add_permission(request, obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Admins of a tenant arrange its members in the console, where a tenant keeps an admin."""
        return is_superuser(request) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_superuser(request) and super().has_delete_permission(request, obj)

    @display(description="Human roles")
    def roles_in_words(self, membership: Membership) -> str:
        return ", ".join(membership.human_roles) or NOTHING


RESET = Action(
    "reset_selected",
    "Reset",
    "Reset",
    "The codes of the app and the recovery codes open nothing any more. Where a second factor is required, the person sets up a new one "
    "at the next sign-in, for which the password is enough: make sure that it is they who ask.",
    (TenantError,),
    danger=True,
    path="reset",
    icon="lock_reset",
    # By its id: the row is named in what is said afterwards.
    do=lambda request, factor, notes: SecondFactor.objects.filter(pk=factor.pk).delete(),
)


@admin.register(SecondFactor)
class SecondFactorAdmin(ActionsAdmin, RecordAdmin):
    """Who has one. Neither its secret nor its recovery codes are shown."""

    list_display = ("user", "confirmed_at", "created_at")
    list_select_related = ("user",)
    search_fields = ("user__username", "user__email")
    fields = ("user", "confirmed_at", "created_at")
    readonly_fields = fields
    row_actions = (RESET,)


@admin.register(Passkey)
class PasskeyAdmin(RecordAdmin):
    list_display = ("name", "owner", "created_at", "used_at")
    list_select_related = ("factor__user",)
    search_fields = ("name", "factor__user__username", "factor__user__email")
    fields = ("name", "owner", "created_at", "used_at")
    readonly_fields = fields

    @admin.display(description="Owner", ordering="factor__user__username")
    def owner(self, passkey: Passkey) -> str:
        return str(passkey.factor.user)


@admin.register(SavedView)
class SavedViewAdmin(RecordAdmin):
    list_display = ("name", "page", "tenant", "membership", "created_at")
    list_filter = (TenantFilter, "page")
    list_select_related = ("tenant", "membership__user")
    search_fields = ("name", "tenant__slug")
    fields = ("name", "page", "query", "tenant", "membership", "created_at")
    readonly_fields = fields
