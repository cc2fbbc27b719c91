"""The admin of tenants and plans, and of creating tokens for tenants."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from unfold.decorators import action
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from tenants import admin_scope, clock, registration, tokens
from tenants.admin.bases import RecordAdmin, SeenForm, UndeletableAdmin
from tenants.admin.permissions import find_row, is_superuser, may_write
from tenants.bounds import check_bounds
from tenants.context import tenant_scope
from tenants.exceptions import TenantError
from tenants.models import ApiToken, Membership, Pause, Plan, Role, Tenant
from tenants.signals import tenant_changed, work_resumed
from tenants.time_zones import error_of_zone


class TokenForm(forms.Form):
    """The permissions of a new token. Its secret is displayed once, on the page that answers this form."""

    name = forms.CharField(max_length=100, widget=UnfoldAdminTextInputWidget, help_text="To recognise it by.")
    role = forms.ChoiceField(choices=Role.choices, initial=Role.OPERATOR, widget=UnfoldAdminSelectWidget)
    days = forms.IntegerField(
        label="Expires in days",
        required=False,
        min_value=1,
        max_value=tokens.LONGEST_DAYS,
        widget=UnfoldAdminIntegerFieldWidget,
        help_text="Never, if empty.",
    )
    scopes = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Empty: everything the role may do. Else read, write, or such as activities:read, separated by spaces.",
    )
    platform = forms.BooleanField(
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="May also change the registry of agents that all tenants share.",
    )

    def __init__(self, data: Any, *, by_superuser: bool) -> None:
        super().__init__(data)
        if not by_superuser:  # admins of one tenant may not change what all tenants share
            del self.fields["platform"]

    def make(self, tenant: Tenant, *, creator_id: int) -> tuple[ApiToken, str]:
        """Create a token. It belongs to its creator, if they are a member."""
        values = self.cleaned_data
        with tenant_scope(tenant.pk):
            is_member = Membership.objects.for_tenant(tenant.pk).filter(user_id=creator_id).exists()
        return tokens.create(
            tenant,
            values["role"],
            values["name"],
            expires_at=clock.now() + timedelta(days=values["days"]) if values["days"] else None,
            scopes=values["scopes"].split(),
            platform=values.get("platform", False),
            user_id=creator_id if is_member else None,
        )


class TenantForm(SeenForm):
    """The form of a tenant. The tenant may be paused in the console while the form is open, so the form only writes the switch if it was
    changed.
    """

    changed_elsewhere = ("paused",)

    paused_seen = forms.BooleanField(required=False, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["paused_seen"].initial = self.instance.paused

    def clean_slug(self) -> str:
        slug: str = self.cleaned_data["slug"]
        if error := registration.error_of_slug(slug):
            raise forms.ValidationError(f"{error.capitalize()}.")
        return slug

    def clean_timezone(self) -> str:
        name: str = self.cleaned_data["timezone"]
        if error := error_of_zone(name):
            raise forms.ValidationError(error)
        return name

    def clean_bounds(self) -> Any:
        bounds = self.cleaned_data["bounds"]
        check_bounds({} if bounds is None else bounds)
        return bounds or {}

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if cleaned.get("paused") == cleaned.get("paused_seen"):
            cleaned["paused"] = self.instance.paused
        return cleaned


@admin.register(Plan)
class PlanAdmin(UndeletableAdmin):
    """Limits for many tenants. A change takes effect for all of them within a second or two."""

    list_display = ("key", "name", "max_concurrency", "max_concurrency_per_group", "created_at")
    search_fields = ("key", "name")
    readonly_fields = ("created_at",)
    fields = ("key", "name", "max_concurrency", "max_concurrency_per_group", "roles", "created_at")
    fixed_fields = ("key",)


@admin.register(Tenant)
class TenantAdmin(UndeletableAdmin):
    form = TenantForm
    list_display = (
        "name", "slug", "plan", "is_active", "paused", "max_concurrency", "weight", "created_at",
    )  # fmt: skip
    list_filter = ("is_active", "paused", "plan")
    search_fields = ("slug", "name")
    readonly_fields: tuple[str, ...] = ("id", "created_at")
    fixed_fields = ("slug",)  # because people and programs refer to a tenant by it
    fields = (
        "slug",
        "name",
        "is_active",
        "paused",
        "plan",
        "max_concurrency",
        "max_concurrency_per_group",
        "weight",
        "timezone",
        "bounds",
        "id",
        "created_at",
    )
    actions_detail = ("create_token",)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Superusers can see all tenants; members see their own."""
        scope, obj = admin_scope.of_request(request), find_row(request, Tenant, obj)
        return is_superuser(request) or (scope.may_read(obj.pk) if obj else bool(scope.reads))

    def get_fields(self, request: HttpRequest, obj: Tenant | None = None) -> tuple[str, ...]:
        # A read-only page displays fields of the row, and `paused_seen` is not one.
        return (
            (*self.fields, "paused_seen") if obj and self.has_change_permission(request, obj) else self.fields
        )

    def save_model(self, request: HttpRequest, obj: Tenant, form: forms.ModelForm, change: bool) -> None:
        super().save_model(request, obj, form, change)
        tenant_changed.send(sender=Tenant, tenant=obj)
        was_stopped = change and (form.initial["paused"] or not form.initial["is_active"])
        if was_stopped and obj.is_active and not obj.paused:
            work_resumed.send(sender=Tenant, tenant_id=obj.pk, kind=None, subject="")

    @action(description="Create an API token", url_path="create-token", icon="key", permissions=["change"])
    def create_token(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Render the form of a token; after a POST, display the token once. It gives access to the tenant's rows, so only people with
        that access may create one."""
        tenant = self.get_object(request, object_id)
        if tenant is not None and not may_write(request, tenant):
            raise PermissionDenied(
                "You are not an admin of this tenant. First open a break-glass session, with a reason."
            )
        if tenant is None:
            return HttpResponseRedirect(reverse("admin:tenants_tenant_changelist"))
        form = TokenForm(request.POST or None, by_superuser=is_superuser(request))
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "tenant": tenant,
            "form": form,
            "title": "API token",
        }
        if form.is_valid():
            try:
                token, secret = form.make(tenant, creator_id=request.user.pk or 0)
            except TenantError as error:
                form.add_error("scopes", str(error))
            else:
                context |= {"token": token, "secret": secret}
                self.log_change(request, tenant, f"Created the API token {token}.")
        response = TemplateResponse(request, "admin/tenants/tenant/create_token.html", context)
        add_never_cache_headers(response)
        return response


@admin.register(Pause)
class PauseAdmin(RecordAdmin):
    """The paused parts of tenants' work, other than roles and whole tenants. Read-only: the API pauses and resumes."""

    list_display = ("name", "kind", "tenant", "paused_by", "paused_at")
    list_filter = ("kind",)
    search_fields = ("name", "subject", "paused_by")
    ordering = ("-paused_at",)
