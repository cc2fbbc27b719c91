"""What every admin of ours has in common.

Members see tenants as `tenants.admin_scope` says, superusers besides what belongs to the platform. What the engine owns is shown and never
edited; what people do to it goes through the same functions as the API.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from django import forms
from django.contrib.admin import SimpleListFilter
from django.db.models import Field, JSONField, Model, QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import display
from unfold.paginator import InfinitePaginator
from unfold.widgets import UnfoldAdminTextareaWidget

from tenants import admin_scope, audit
from tenants.admin.permissions import BySight, PlatformOnly, tenant_of
from tenants.audit import one_line, redact
from tenants.models import Tenant

# Everything that is changed in the admin goes to the audit trail, where Django's own admin writes its history: once per row, in the same
# transaction.


KEPT = "_audited_changes"


class Audited:
    """Mixed into an admin. Rows of a tenant stand in its trail, those of the platform in the platform's own."""

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        setattr(request, KEPT, _changes_of(form))
        return super().construct_change_message(request, form, formsets, add)  # type: ignore[misc]  # the admin's

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        note_change(request, obj, "add", message)
        return super().log_addition(request, obj, message)  # type: ignore[misc]

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        note_change(request, obj, "change", message)
        return super().log_change(request, obj, message)  # type: ignore[misc]

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any] | list[Any]) -> Any:
        for row in queryset:
            note_change(request, row, "delete", "")
        return super().log_deletions(request, queryset)  # type: ignore[misc]


def note_change(request: HttpRequest, row: Model, verb: str, message: Any) -> None:
    """Record what was done to a row. A message of ours begins with the action; the rest are people's own words."""
    tenant_id = tenant_of(row)
    if tenant_id is not None and not admin_scope.of_request(request).may_write(tenant_id):
        tenant_id = None  # a tenant's own row, changed by the platform
    action = one_line(message.partition(".")[0]) if isinstance(message, str) and message else ""
    kind = f"{row._meta.app_label}.{row._meta.model_name}"
    audit.record(
        f"admin {kind} {verb}",
        actor=audit.actor_of(request.user),
        tenant_id=tenant_id,
        about=(kind, row.pk),
        changes=getattr(request, KEPT, {}) if not action else {},
        detail={"deed": action} if action else {},
    )


def _changes_of(form: Any) -> Mapping[str, Any]:
    cleaned = getattr(form, "cleaned_data", {})
    return {
        one_line(name, 100): [
            redact(name, _plain(form.initial.get(name))),
            redact(name, _plain(cleaned.get(name))),
        ]
        for name in form.changed_data
    }


def _plain(value: Any) -> Any:
    if isinstance(value, QuerySet):
        return [str(row.pk) for row in value[:100]]
    return str(value.pk) if isinstance(value, Model) else value


NOTHING = SafeString("-")  # what a field shows that has nothing to show
MOST_TENANTS = 30  # in a filter; on a platform with more, the search field finds a tenant's rows by its slug


class SuperusersOnly(Audited, PlatformOnly):
    """Mixed into the admins of packages, whose rows belong to the platform."""


class ClearableJSONField(forms.JSONField):
    """JSON of a column that is never NULL: emptied, or typed as null or "", it is what a new row has."""

    def __init__(self, *, when_empty: Callable[[], Any], **options: Any) -> None:
        super().__init__(**options)
        self._when_empty = when_empty

    def clean(self, value: Any) -> Any:
        found = super().clean(value)
        return self._when_empty() if found in (None, "") else found


class PlatformAdmin(Audited, BySight, ModelAdmin):
    """Rows that are made, changed and deleted here: a tenant's by its admins, the platform's by superusers."""

    list_fullwidth = True
    list_per_page = 50
    formfield_overrides = {
        JSONField: {"widget": UnfoldAdminTextareaWidget(attrs={"rows": 5, "class": "orc-code"})}
    }
    # Counting everything on every page costs more than the page.
    show_full_result_count = False

    def formfield_for_dbfield(self, db_field: Field[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        if (
            isinstance(db_field, JSONField)
            and db_field.blank
            and not db_field.null
            and db_field.has_default()
        ):
            kwargs |= {"form_class": ClearableJSONField, "when_empty": db_field.get_default}
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_list_select_related(self, request: HttpRequest) -> tuple[str, ...]:
        """What a row of the list refers to is read with it: every foreign key among its columns, and what `list_select_related` names."""
        keys = {field.name for field in self.opts.concrete_fields if field.is_relation}
        return (*(self.list_select_related or ()), *keys.intersection(self.get_list_display(request)))


class KeptAdmin(PlatformAdmin):
    """Made and changed here, but never deleted: history refers to it. It is switched off instead."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class RecordAdmin(KeptAdmin):
    """Shown only: the engine writes it. Newest first by the ids, page by page without counting, as there may be millions.

    A row's page leaves out what is empty. `stands_for` names the column behind a field that is made by a method; a method that one of
    the functions below has made knows its column.
    """

    stands_for: Mapping[str, str] = {}
    paginator = InfinitePaginator
    list_disable_select_all = True
    ordering: Any = ("-pk",)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.readonly_fields or self.fields or ()

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = []
        for title, options in super().get_fieldsets(request, obj):
            fields = tuple(name for name in options["fields"] if not self._is_empty(obj, name))
            if fields:
                shown.append((title, {**options, "fields": fields}))
        return shown

    def _is_empty(self, obj: Any, name: str) -> bool:
        made_of = getattr(getattr(self, name, None), "made_of", name)
        return getattr(obj, self.stands_for.get(name, made_of), self) in (None, "", {}, [])

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """An id that somebody pasted is looked up by the index; anything else is searched for in the fields."""
        try:
            row_id = UUID(search_term.strip())
        except ValueError:
            found: tuple[QuerySet[Any], bool] = super().get_search_results(request, queryset, search_term)
            return found
        return queryset.filter(pk=row_id), False


class ShownInline(TabularInline):
    """Rows that the engine writes. They are seen by everybody who sees the row that they belong to."""

    extra = 0
    can_delete = False
    # Newer releases of the theme, which need Python 3.12, have the opposite and warn of the old name at every command.
    if hasattr(TabularInline, "show_title"):
        show_title = False
    else:
        hide_title = True

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not admin_scope.of_request(request).is_empty

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.readonly_fields or self.fields or ()


class TenantFilter(SimpleListFilter):
    """Rows of one tenant."""

    title, parameter_name = "tenant", "tenant"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            (slug, slug)
            for slug in Tenant.objects.order_by("slug").values_list("slug", flat=True)[:MOST_TENANTS]
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(tenant__slug=self.value()) if self.value() else queryset


def actor_of(request: HttpRequest) -> str:
    """The name under which a user of the admin is recorded as the actor."""
    return f"user:{request.user.get_username()}"


def page_of(model: type[Model] | Model, key: object) -> str:
    """The address of a row's page in the admin."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[key])


def link_to(model: type[Model] | Model, key: object, text: object) -> SafeString:
    """A link to a row's page in the admin; a dash when there is no row."""
    if key is None:
        return NOTHING
    return format_html('<a class="text-link" href="{}">{}</a>', page_of(model, key), text)


def as_json(value: Any) -> str:
    """For people: indented, and every letter as it is."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def badge(text: str, kind: str = "") -> SafeString:
    """A word in a coloured box. `kind` is success, info, warning, danger or nothing."""
    return render_to_string("unfold/helpers/label.html", {"text": text.replace("_", " "), "type": kind})


# Fields that many admins show in the same way: `state = badge_of("status", LABELS)` in the class of one.


def badge_of(column: str, kinds: Mapping[str, str], title: str = "Status") -> Any:
    """The word in the column, in the colour that belongs to it."""
    return _column_of(column, title, lambda row, value: badge(value, kinds.get(value, "")))


def link_of(
    column: str, model: type[Model], title: str, *, text: Callable[[Any], object] | None = None
) -> Any:
    """A link to the row whose key is in the column; it reads `text` of our row, else the key."""
    return _column_of(column, title, lambda row, value: link_to(model, value, text(row) if text else value))


def json_of(column: str, title: str) -> Any:
    """The data in the column, indented."""
    return _column_of(
        column, title, lambda row, value: format_html('<pre class="orc-output">{}</pre>', as_json(value))
    )


def _column_of(column: str, title: str, shown: Callable[[Any, Any], SafeString]) -> Any:
    @display(description=title)
    def field(admin: Any, row: Any) -> SafeString:
        return shown(row, getattr(row, column))

    field.made_of = column
    return field
