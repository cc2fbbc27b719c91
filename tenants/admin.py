"""The admin of tenants, their members and tokens, and what the admins of all apps share.

The admin is the platform's: superusers only, over all tenants. What the engine owns is shown and never edited; what people do to it goes
through the same functions as the API.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin import SimpleListFilter
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from unfold.admin import ModelAdmin
from unfold.decorators import action, display
from unfold.paginator import InfinitePaginator
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from tenants import tokens
from tenants.exceptions import TenantError
from tenants.models import ApiToken, IdempotentRequest, Membership, Role, Tenant

MOST_TENANTS = 30  # in a filter; a platform with more of them finds one by its slug in the search field


def is_superuser(request: HttpRequest) -> bool:
    return bool(request.user.is_active and request.user.is_superuser)


class PlatformAdmin(ModelAdmin):
    """For superusers only, whatever permissions anybody was given."""

    list_fullwidth = True
    list_per_page = 50
    show_full_result_count = False

    def has_module_permission(self, request: HttpRequest) -> bool:
        return is_superuser(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_superuser(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return is_superuser(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_superuser(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return is_superuser(request)


class KeptAdmin(PlatformAdmin):
    """Made and changed here, but never deleted: history refers to it. Switch it off instead."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class RecordAdmin(KeptAdmin):
    """Shown only: the engine writes it. Pages without counting, as the tables are large, newest first by their ids."""

    paginator = InfinitePaginator
    list_disable_select_all = True
    ordering: ClassVar[Iterable[str]] = ("-pk",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[QuerySet[Any], bool]:
        """An id that somebody pasted is looked up by the index; anything else is searched for in the fields."""
        try:
            wanted = UUID(search_term.strip())
        except ValueError:
            found: tuple[QuerySet[Any], bool] = super().get_search_results(request, queryset, search_term)
            return found
        return queryset.filter(pk=wanted), False


class TenantFilter(SimpleListFilter):
    """Rows of one tenant."""

    title, parameter_name = "tenant", "tenant"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(tenant.slug, tenant.slug) for tenant in Tenant.objects.only("slug").order_by("slug")[:MOST_TENANTS]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(tenant__slug=self.value()) if self.value() else queryset


def link_to(model: type[Model] | Model, key: object, text: object) -> SafeString:
    """A link to a row's page in the admin; a dash when there is no row."""
    if key is None:
        return format_html("–")
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[key])
    return format_html('<a class="text-link" href="{}">{}</a>', url, text)


@admin.register(Tenant)
class TenantAdmin(KeptAdmin):
    list_display = ("name", "slug", "is_active", "paused", "max_concurrency", "weight", "created_at")
    list_filter = ("is_active", "paused")
    search_fields = ("slug", "name")
    readonly_fields = ("id", "created_at")
    fields = ("id", "slug", "name", "is_active", "paused", "max_concurrency", "weight", "timezone", "created_at")
    actions_detail = ("create_token",)

    def get_readonly_fields(self, request: HttpRequest, obj: Tenant | None = None) -> tuple[str, ...]:
        # People and programs name a tenant by its slug, so it stays what it is.
        return (*self.readonly_fields, *(("slug",) if obj else ()))

    @action(description="Create an API token", url_path="create-token", icon="key")
    def create_token(self, request: HttpRequest, object_id: str) -> HttpResponse:
        tenant = self.get_object(request, object_id)
        if tenant is None or not is_superuser(request):
            return HttpResponseRedirect(reverse("admin:tenants_tenant_changelist"))
        form = TokenForm(request.POST or None)
        context = {**self.admin_site.each_context(request), "opts": self.opts, "tenant": tenant, "form": form, "title": "Create an API token"}
        if form.is_valid():
            try:
                token, context["secret"] = form.make(tenant)
            except TenantError as error:
                form.add_error(None, str(error))
            else:
                context["token"] = token
                # The log says that it was made, never what it is.
                self.log_change(request, tenant, f"Created the API token {token}.")
        return never_cache(TemplateResponse)(request, "admin/tenants/tenant/create_token.html", context)


class TokenForm(forms.Form):
    """What a token may do. Its secret is shown once, on the page that answers this form."""

    name = forms.CharField(max_length=100, widget=UnfoldAdminTextInputWidget, help_text="To recognise it by.")
    role = forms.ChoiceField(choices=Role.choices, initial=Role.OPERATOR, widget=UnfoldAdminSelectWidget)
    days = forms.IntegerField(
        required=False, min_value=1, max_value=3650, label="Expires in days", widget=UnfoldAdminIntegerFieldWidget, help_text="Never, if empty."
    )
    scopes = forms.CharField(
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text="Empty: everything the role may do. Else read, write, or such as activities:read, separated by spaces.",
    )
    platform = forms.BooleanField(
        required=False, widget=UnfoldBooleanSwitchWidget, help_text="May also change the registry of agents that all tenants share."
    )

    def make(self, tenant: Tenant) -> tuple[ApiToken, str]:
        values = self.cleaned_data
        return tokens.create(
            tenant,
            values["role"],
            values["name"],
            expires_at=timezone.now() + timedelta(days=values["days"]) if values["days"] else None,
            scopes=values["scopes"].split(),
            platform=values["platform"],
        )


@admin.register(ApiToken)
class ApiTokenAdmin(RecordAdmin):
    list_display = ("name", "tenant", "role", "prefix", "state", "expires_at", "last_used_at", "created_at")
    list_filter = (TenantFilter, "role", "platform")
    list_select_related = ("tenant",)
    search_fields = ("name", "prefix", "tenant__slug")
    fields = ("name", "tenant", "role", "prefix", "scopes", "platform", "state", "expires_at", "revoked_at", "last_used_at", "created_at")
    readonly_fields = fields
    actions = ("revoke_selected",)
    actions_detail = ("revoke",)

    @display(description="State", label={"active": "success", "expired": "warning", "revoked": "danger"})
    def state(self, token: ApiToken) -> str:
        if token.revoked_at:
            return "revoked"
        return "expired" if token.expires_at and token.expires_at <= timezone.now() else "active"

    @admin.action(description="Revoke", permissions=["view"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        for token in queryset:
            tokens.revoke(token)
            self.log_change(request, token, "Revoked.")
        messages.success(request, f"Revoked: {', '.join(token.name for token in queryset)}. They open nothing any more.")

    @action(description="Revoke", url_path="revoke", icon="block", permissions=["view"], attrs={"data-confirm": "true"})
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self.response_action_of(request, object_id)

    def response_action_of(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return HttpResponseRedirect(reverse("admin:tenants_apitoken_changelist"))


class MembershipForm(forms.ModelForm[Membership]):
    """Human roles as words."""

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

    @display(description="Human roles")
    def roles_in_words(self, membership: Membership) -> str:
        return ", ".join(membership.human_roles) or "–"


@admin.register(IdempotentRequest)
class IdempotentRequestAdmin(RecordAdmin):
    list_display = ("created_at", "tenant", "status_code", "digest")
    list_filter = (TenantFilter,)
    list_select_related = ("tenant",)
    # The answer's body may hold what only its caller should see.
    fields = ("id", "tenant", "status_code", "digest", "request_digest", "created_at")
