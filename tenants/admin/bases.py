"""The base classes and helpers of all our admins.

Members see the tenants that `tenants.admin_scope` allows; superusers also see rows of the platform. Rows of the engine are read-only;
actions on them call the same functions as the API.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import flatten_fieldsets
from django.core.exceptions import FieldDoesNotExist, PermissionDenied, ValidationError
from django.db import connections
from django.db.models import Field, JSONField, Model, Q, QuerySet
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold import forms as theme_forms
from unfold.admin import ModelAdmin, TabularInline
from unfold.decorators import display
from unfold.fields import UnfoldAdminReadonlyField
from unfold.paginator import InfinitePaginator
from unfold.widgets import UnfoldAdminTextareaWidget

from tenants import admin_scope, audit, strict_json
from tenants.admin.permissions import PlatformOnly, ScopedPermissions, is_owned, tenant_of
from tenants.audit import one_line, redact
from tenants.models import Tenant
from tenants.sql import lock_name

# Every change in the admin is recorded in the audit trail, where Django's admin writes its history: once per row, in the same transaction.


AUDITED_CHANGES = "_audited_changes"


class Audited:
    """A mixin for admins that records changes: of a tenant's rows in its trail, of the platform's rows in the platform's trail."""

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        setattr(request, AUDITED_CHANGES, _changes_of(form))
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

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        # Django looks for the row first, so its answer to people without permission would say whether the row exists.
        if not self.has_view_or_change_permission(request):  # type: ignore[attr-defined]
            raise PermissionDenied
        return super().history_view(request, object_id, extra_context)  # type: ignore[misc]


def note_change(request: HttpRequest, row: Model, verb: str, message: Any) -> None:
    """Record a change of a row. A message of ours begins with the action; the rest is free text."""
    tenant_id = tenant_of(row)
    if tenant_id is not None and not admin_scope.of_request(request).may_write(tenant_id):
        tenant_id = None  # a row of a tenant, changed by the platform
    action = one_line(message.partition(".")[0]) if isinstance(message, str) and message else ""
    kind = f"{row._meta.app_label}.{row._meta.model_name}"
    audit.record(
        f"admin {kind} {verb}",
        actor=audit.actor_of(request.user),
        tenant_id=tenant_id,
        about=(kind, row.pk),
        changes=getattr(request, AUDITED_CHANGES, {}) if not action else {},
        detail={"action": action} if action else {},
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


NOTHING = SafeString("-")  # rendered for an empty field
LONGEST_JSON = 1_000_000  # bytes in one field
CHANGED = "This was changed since you opened it. Your input is still here: copy it, then reload the page to see the current values."
MOST_TENANTS = 30  # in a filter; on a platform with more, the search field finds a tenant's rows by its slug


class CheckedSelection:
    """A mixin for admins. An action with an id that no row can have does nothing and says so, instead of failing in the database."""

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *place: Any, **options: Any
    ) -> Any:
        key: Any = queryset.model._meta.pk
        for text in request.POST.getlist(ACTION_CHECKBOX_NAME):
            try:
                is_possible = "\x00" not in text and key.to_python(text) is not None
            except ValidationError:
                is_possible = False
            if not is_possible:
                messages.error(request, f"Nothing was done: {one_line(text, 100)!r} is not the id of a row.")
                return None
        return super().response_action(request, queryset, *place, **options)  # type: ignore[misc]  # the admin's


class ReadOnlyField(UnfoldAdminReadonlyField):
    """A read-only field that computes its value once for a page. The theme's does it five times, which took a third of the page's time."""

    def _resolve_field(self) -> Any:
        """Look up only columns, because this is asked for JSON and files."""
        try:
            self.form.instance._meta.get_field(self.field["field"])
        except FieldDoesNotExist:
            return False
        return super()._resolve_field()

    @cached_property
    def contents(self) -> Any:
        return super().contents()


theme_forms.UnfoldAdminReadonlyField = ReadOnlyField  # as the theme replaces Django's


class SuperusersOnly(Audited, CheckedSelection, PlatformOnly):
    """A mixin for the admins of third-party packages, whose rows belong to the platform."""


class StrictJSONField(forms.JSONField):
    """The field of a JSON column, with the rules of the API: what PostgreSQL cannot store, endless nesting and repeated keys fail."""

    def to_python(self, value: Any) -> Any:
        if isinstance(value, str) and not self.disabled and value not in self.empty_values:
            try:
                _read_json(value)
            except strict_json.StrictJSONError as error:
                raise forms.ValidationError(f"The text {error.message}.", code="invalid") from error
        return super().to_python(value)

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return refused text unchanged, so that the form displays it as it was typed."""
        try:
            _read_json(data or "null")
        except strict_json.StrictJSONError:
            return initial if self.disabled else InvalidJSONInput(data)
        return super().bound_data(data, initial)


def _read_json(text: str) -> Any:
    return strict_json.loads(
        text.encode(errors="surrogatepass"), max_bytes=LONGEST_JSON, reject_duplicate_keys=True
    )


class ClearableJSONField(StrictJSONField):
    """The field of a JSON column that is never NULL. An empty value, null or "" means the default of a new row."""

    def __init__(self, *, when_empty: Callable[[], Any], **options: Any) -> None:
        super().__init__(**options)
        self._when_empty = when_empty

    def clean(self, value: Any) -> Any:
        cleaned = super().clean(value)
        return self._when_empty() if cleaned in (None, "") else cleaned


class SeenField(forms.CharField):
    """A hidden field that is no change of the row."""

    widget = forms.HiddenInput

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class SeenForm(forms.ModelForm):
    """A form that is not saved if somebody else has changed its values since it was opened."""

    seen = SeenField(required=False)
    changed_elsewhere: tuple[str, ...] = ()  # fields that the form does not overwrite anyway
    counted_by = ""  # the column that counts all changes, if the form lacks some of the row's values

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        stored = {name: value for name, value in self.initial.items() if name not in self.changed_elsewhere}
        count = getattr(self.instance, self.counted_by) if self.counted_by else None
        text = json.dumps([stored, count], sort_keys=True, default=str)
        self._stored = "" if self.instance._state.adding else hashlib.sha256(text.encode()).hexdigest()
        self.initial["seen"] = self._stored

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if values.get("seen") and values["seen"] != self._stored:
            raise forms.ValidationError(CHANGED)
        return values


class PlatformAdmin(Audited, CheckedSelection, ScopedPermissions, ModelAdmin):
    """Rows that people create, change and delete here: a tenant's rows by its admins, the platform's by superusers.

    Lists of tenants' rows can be filtered and searched by tenant.
    """

    form: type[forms.ModelForm] = SeenForm
    fixed_fields: tuple[str, ...] = ()  # never change after the row was added
    counts_changes = False  # whether each change raises the row's `version`
    # Whether another transaction saves the row, which a lock of the row here would block.
    saves_elsewhere = False
    # What is saved may be refused although its form was valid, because of another change meanwhile.
    refused_late: tuple[type[Exception], ...] = ()

    list_fullwidth = True
    list_per_page = 50
    formfield_overrides = {
        JSONField: {"widget": UnfoldAdminTextareaWidget(attrs={"rows": 5, "class": "orc-code"})}
    }
    # Counting all rows would cost more than rendering the page.
    show_full_result_count = False

    def formfield_for_dbfield(self, db_field: Field[Any, Any], request: HttpRequest, **kwargs: Any) -> Any:
        if isinstance(db_field, JSONField):
            is_clearable = db_field.blank and not db_field.null and db_field.has_default()
            kwargs |= (
                {"form_class": ClearableJSONField, "when_empty": db_field.get_default}
                if is_clearable
                else {"form_class": StrictJSONField}
            )
        return super().formfield_for_dbfield(db_field, request, **kwargs)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row, or None also for an id that no database can contain. A row that is about to be saved is locked first.

        Otherwise two people who save at the same moment would both find the values that they have seen.
        """
        if "\x00" in object_id:
            return None
        row = super().get_object(request, object_id, from_field)
        is_compared = request.method == "POST" and issubclass(self.form, SeenForm)
        if row is None or not is_compared or not connections[row._state.db].in_atomic_block:
            return row
        if self.saves_elsewhere:
            lock_name(f"{self.opts.label_lower} {row.pk}", using=row._state.db)
        else:
            # The key does not change, so work that refers to the row need not wait.
            rows = self.model._base_manager.using(row._state.db).filter(pk=row.pk)
            list(rows.select_for_update(of=("self",), no_key=True).values_list("pk"))
        return super().get_object(request, object_id, from_field)

    def changeform_view(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
        try:
            response: HttpResponse = super().changeform_view(request, *args, **options)
        except self.refused_late as refusal:
            messages.error(request, f"Not saved: {refusal} Go back in the browser to copy your input.")
            return HttpResponseRedirect(request.get_full_path())
        return response

    def get_list_filter(self, request: HttpRequest) -> Any:
        return (TenantFilter, *self.list_filter) if is_owned(self.model) else self.list_filter

    def get_search_fields(self, request: HttpRequest) -> Any:
        return (*self.search_fields, "tenant__slug") if is_owned(self.model) else self.search_fields

    def get_autocomplete_fields(self, request: HttpRequest) -> Any:
        return ("tenant", *self.autocomplete_fields) if is_owned(self.model) else self.autocomplete_fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, *self.fixed_fields) if obj else self.readonly_fields

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """The form of a new row of a tenant begins with the person's tenant, if they administer only one."""
        initial: dict[str, Any] = super().get_changeform_initial_data(request)
        administered = admin_scope.of_request(request).writes
        return {"tenant": str(next(iter(administered))), **initial} if len(administered) == 1 else initial

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj else ()

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Add the hidden field of a form that somebody can save."""
        fieldsets = super().get_fieldsets(request, obj)
        is_guarded = obj is not None and issubclass(self.form, SeenForm)
        if (
            not is_guarded
            or "seen" in flatten_fieldsets(fieldsets)
            or not self.has_change_permission(request, obj)
        ):
            return fieldsets
        (title, options), *others = fieldsets
        return [(title, {**options, "fields": (*options["fields"], "seen")}), *others]

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change and self.counts_changes:
            obj.version += 1
        super().save_model(request, obj, form, change)

    def show_saved(self, obj: Any, key: Any) -> None:
        """Load the row that a function of the API has saved, with this key."""
        obj.pk, obj._state.adding = key, False
        obj.refresh_from_db()

    def get_list_select_related(self, request: HttpRequest) -> tuple[str, ...]:
        """Read referenced rows together with the list: every foreign key among its columns, and those in `list_select_related`."""
        keys = {field.name for field in self.opts.concrete_fields if field.is_relation}
        return (*(self.list_select_related or ()), *keys.intersection(self.get_list_display(request)))


class UndeletableAdmin(PlatformAdmin):
    """Rows that people create and change here, but never delete, because history refers to them. They can be switched off."""

    is_deletable = False  # True for rows to which nothing refers by a key

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.is_deletable and self.has_change_permission(request, obj)


class RecordAdmin(UndeletableAdmin):
    """Read-only rows of the engine. Newest first by id, page by page without counting, because there may be millions.

    Without `fields`, a row's page has all columns except sealed ones, rendered by the fields of this class that the functions below return.
    It omits empty fields; `stands_for` names the column that tells whether a field of another method is empty.
    """

    stands_for: Mapping[str, str] = {}
    ids: tuple[str, ...] = ("pk",)  # the columns in which an id is looked up
    not_in_list: tuple[str, ...] = ()  # large columns, which only a row's page reads
    paginator = InfinitePaginator
    list_disable_select_all = True
    ordering: Any = ("-pk",)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.fields or self._all_columns

    @cached_property
    def _all_columns(self) -> tuple[str, ...]:
        own: dict[str, Any] = {name: getattr(type(self), name, None) for name in dir(type(self))}
        rendered = {field.column: name for name, field in own.items() if hasattr(field, "column")}
        columns = [field for field in self.opts.concrete_fields if not field.name.endswith("_sealed")]
        return tuple(rendered.get(field.attname, field.name) for field in columns)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.readonly_fields or self.get_fields(request, obj)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        fieldsets = []
        for title, options in super().get_fieldsets(request, obj):
            fields = tuple(name for name in options["fields"] if not self._is_empty(obj, name))
            if fields:
                fieldsets.append((title, {**options, "fields": fields}))
        return fieldsets

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        is_page = request.resolver_match and "object_id" in request.resolver_match.kwargs
        return rows if is_page else rows.defer(*self.not_in_list)

    def _is_empty(self, obj: Any, name: str) -> bool:
        column = getattr(getattr(self, name, None), "column", name)
        return getattr(obj, self.stands_for.get(name, column), self) in (None, "", {}, [])

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Look up an id by the index, and search for any other text in the fields."""
        try:
            row_id = UUID(search_term.strip())
        except ValueError:
            return super().get_search_results(request, queryset, search_term)
        return queryset.filter(reduce(or_, (Q(**{name: row_id}) for name in self.ids))), False


class ShownInline(TabularInline):
    """Read-only rows of the engine, for everybody who can see their parent row."""

    extra = 0
    can_delete = False
    # Newer releases of the theme, which need Python 3.12, have the opposite option, and warn about the old one at every command.
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
    title, parameter_name = "tenant", "tenant"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            (slug, slug)
            for slug in Tenant.objects.order_by("slug").values_list("slug", flat=True)[:MOST_TENANTS]
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(tenant__slug=self.value()) if self.value() else queryset


def actor_of(request: HttpRequest) -> str:
    """Return the name under which a user of the admin is recorded as the actor."""
    return f"user:{request.user.get_username()}"


def identity_of(request: HttpRequest) -> str:
    """Return the identity of a user of the admin, which is the same with all of their credentials."""
    return f"user:{request.user.pk}"


def page_of(model: type[Model] | Model, key: object) -> str:
    """Return the address of a row's page in the admin."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[key])


def link_to(model: type[Model] | Model, key: object, text: object) -> SafeString:
    """Return a link to a row's page in the admin, or a dash when there is no row."""
    if key is None:
        return NOTHING
    return format_html('<a class="text-link" href="{}">{}</a>', page_of(model, key), text)


def as_json(value: Any) -> str:
    """Return JSON for people: indented, without escapes of letters."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


#: The kind of box of a state's word, wherever it is displayed. Other words have a grey one.
KINDS: Mapping[str, str] = {
    word: kind
    for kind, words in {
        "success": "done completed success sent delivered approved woken fired answered healthy",
        "info": "running active sending info claimed enqueued bound open replayed",
        "warning": "pending partial paused planning warning stalled collected expired",
        "danger": "failed rejected refused unhealthy critical",
    }.items()
    for word in words.split()
}


def badge(text: str, kind: str | None = None) -> SafeString:
    """Return a word in a coloured box. `kind` is success, info, warning, danger or empty; if omitted, that of the word."""
    kind = KINDS.get(text, "") if kind is None else kind
    return render_to_string("unfold/helpers/label.html", {"text": text.replace("_", " "), "type": kind})


# Fields that many admins render in the same way, such as `state = badge_of("status")` in an admin's class.


def badge_of(column: str, title: str = "Status", **kinds: str) -> Any:
    """Return a field with the word in the column, in its colour. `kinds` has the words with another colour than elsewhere."""
    return column_of(column, title, lambda row, value: badge(value, kinds.get(value)))


def link_of(
    column: str, model: type[Model], title: str, *, text: Callable[[Any], object] | None = None
) -> Any:
    """Return a field with a link to the row whose key is in the column. Its text is `text` of the row, else the key."""
    return column_of(column, title, lambda row, value: link_to(model, value, text(row) if text else value))


def json_of(column: str, title: str) -> Any:
    """Return a field with the JSON in the column, indented."""
    return column_of(
        column, title, lambda row, value: format_html('<pre class="orc-output">{}</pre>', as_json(value))
    )


def seconds_of(column: str, title: str) -> Any:
    """Return a field with the seconds in the column, to the millisecond."""
    return column_of(
        column, title, lambda row, value: format_html("{}&nbsp;s", f"{value:.3f}".rstrip("0").rstrip("."))
    )


def column_of(
    column: str, title: str, render: Callable[[Any, Any], Any], *, ordering: str | None = None
) -> Any:
    """Return a field with what `render` returns for the row and the column's value."""

    @display(description=title, ordering=ordering)
    def field(admin: Any, row: Any) -> Any:
        return render(row, getattr(row, column))

    field.column = column
    return field
