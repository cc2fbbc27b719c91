"""Datasets in the admin: a form, an upload of rows with a preview, and a list of rows."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import action, display

from pipelines import datasets, keys
from pipelines.data_sources import Source
from pipelines.datasets import Declaration, FillResult, Upload
from pipelines.definition.errors import DefinitionError
from pipelines.exceptions import PipelineError
from pipelines.models import Dataset, DatasetRow
from tenants.admin.bases import NOTHING, PlatformAdmin, RecordAdmin, SeenForm, json_of, page_of
from tenants.context import APP, tenant_scope
from tenants.redis import client
from tenants.wording import describe_count

# Rows from a file: previewed first, then stored. Meanwhile the file is kept for a while, for this person and dataset only.


TEMPLATE = "admin/pipelines/dataset/upload.html"
Done = Callable[[HttpRequest, Dataset, str], HttpResponse]


class _RefusedUpload(Exception):
    """The file is refused before it is read."""


def page(request: HttpRequest, dataset: Dataset, context: dict[str, Any], *, done: Done) -> HttpResponse:
    """The page that takes a file, previews its rows, and stores them."""
    replace = "replace" in request.POST
    page_context: dict[str, Any] = {
        "dataset": dataset, "replace": replace, "action": request.path, "title": f"Upload rows to {dataset}",
        "came_from": page_of(Dataset, dataset.pk),
    }  # fmt: skip
    if request.method == "POST":
        try:
            if "store" in request.POST:
                kept = read_kept(_owner(request, dataset), request.POST.get("kept", ""))
                if kept is None:
                    raise _RefusedUpload("The file has expired. Choose it again.")
                raw, name = kept
                filled = datasets.fill(dataset.tenant_id, dataset.pk, _read(raw, name), replace=replace)
                return done(request, dataset, _summary(filled, "were"))
            page_context["preview"] = _preview(request, dataset, replace)
        except DefinitionError as error:
            page_context["faults"] = error.errors
        except (PipelineError, _RefusedUpload) as error:
            page_context["refusal"] = str(error)
    return TemplateResponse(request, TEMPLATE, {**context, **page_context})


def _preview(request: HttpRequest, dataset: Dataset, replace: bool) -> dict[str, Any]:
    """Return the rows that would be stored."""
    file = request.FILES.get("file")
    if file is None:
        raise _RefusedUpload("Choose a file.")
    most = settings.ORCHESTRATOR_DATASET_BODY_BYTES
    if (file.size or 0) > most:
        raise _RefusedUpload(f"The file has {file.size:,} bytes; at most {most:,} are allowed.")
    raw, name = file.read(), str(file.name)
    upload = _read(raw, name)
    filled = datasets.fill(dataset.tenant_id, dataset.pk, upload, replace=replace, dry_run=True)
    names = list(dataset.fields)
    rows = [[row.get(field) for field in names] for row in upload.rows[:FIRST_ROWS]]
    return {
        "outcome": _summary(filled, "would be"),
        "names": names,
        "rows": rows,
        "number": len(upload.rows),
        "kept": keep(_owner(request, dataset), name, raw),
    }


def _owner(request: HttpRequest, dataset: Dataset) -> str:
    return f"{request.user.pk}:{dataset.pk}"


def _read(raw: bytes, name: str) -> Upload:
    if name.lower().endswith(".csv"):
        return datasets.read_csv(raw)
    if name.lower().endswith(".json"):
        return datasets.read_json(raw)
    raise _RefusedUpload("The name of the file must end with .csv or .json.")


def _summary(filled: FillResult, verb: str) -> str:
    added = describe_count(filled.added, f"row {'was' if verb == 'were' else verb}", f"rows {verb}")
    return (
        f"{added} added, {filled.updated:,} changed and {filled.removed:,} removed; {filled.rows:,} in all."
    )


FIRST_ROWS = 20


class DatasetForm(SeenForm):
    """Validates by saving the dataset in a transaction that is rolled back."""

    def clean_fields(self) -> Any:
        fields = self.cleaned_data["fields"]
        if not isinstance(fields, dict):
            raise forms.ValidationError('Enter an object, such as {"id": "string", "enabled": "boolean"}.')
        return fields

    def clean(self) -> dict[str, Any]:
        values: dict[str, Any] = super().clean() or self.cleaned_data
        # Changes in Redis cannot be rolled back.
        if not self.errors and (self.instance._state.adding or self.instance.source == Source.DB):
            try:
                tenant_id = self.instance.tenant_id or values["tenant"].pk
                with tenant_scope(tenant_id):
                    save(self.instance, tenant_id, values)
                    transaction.set_rollback(True, using=APP)
            except DefinitionError as error:
                for problem in error.errors:
                    self._add(problem.path, problem.message)
            except PipelineError as error:
                self.add_error(None, str(error))
        return values

    def _add(self, path: str, message: str) -> None:
        name = path.partition(".")[0].partition("[")[0]
        if name in self.fields and name == path:
            self.add_error(name, message)
        else:
            field = (
                name
                if name in self.fields
                else "fields"
                if name == "rows" and "fields" in self.fields
                else None
            )
            self.add_error(field, f"{path}: {message}")


def save(dataset: Dataset, tenant_id: Any, values: Mapping[str, Any]) -> Dataset:
    """Save a dataset as the API does."""
    source = values["source"] if dataset._state.adding else dataset.source
    error = datasets.error_of_location(source, values["location"])
    if dataset._state.adding:
        members = {name: values[name] for name in ("name", "fields", "source", "location", "description")}
        return datasets.create(tenant_id, Declaration(**members, location_error=error))
    members = {name: values[name] for name in ("fields", "location", "description")}
    return datasets.change(tenant_id, dataset.pk, **members, location_error=error)


@admin.register(Dataset)
class DatasetAdmin(PlatformAdmin):
    form = DatasetForm
    saves_elsewhere = True
    list_display = ("name", "tenant", "source", "fields_in_words", "number", "updated_at")
    list_filter = ("source",)
    search_fields = ("name",)
    fields = ("tenant", "name", "source", "location", "description", "fields", "version", "first_rows")
    readonly_fields = ("version", "first_rows")
    fixed_fields = ("tenant", "name", "source")  # because schedules refer to the source and the name
    actions_detail = ("upload",)
    ordering = ("tenant", "name")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).annotate(stored=Count("rows"))

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        return {}  # deleting several at once would not check which schedules read them

    def get_actions_detail(self, request: HttpRequest, object_id: str) -> list[Any]:
        dataset = self.get_object(request, object_id)
        if dataset is None or dataset.source not in (Source.DB, Source.CACHE):
            return []
        return super().get_actions_detail(request, object_id)

    @display(description="Fields")
    def fields_in_words(self, dataset: Dataset) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in dataset.fields.items())

    @display(description="Rows")
    def number(self, dataset: Any) -> Any:
        return dataset.stored if dataset.source == Source.DB else NOTHING

    @display(description="First rows")
    def first_rows(self, dataset: Dataset) -> SafeString:
        if dataset._state.adding or dataset.source != Source.DB:
            return NOTHING
        rows = dataset.rows.order_by("id")[:FIRST_ROWS]
        names = list(dataset.fields)
        values = [[row.data.get(name) for name in names] for row in rows]
        table = render_to_string("admin/pipelines/dataset/rows.html", {"rows": values, "names": names})
        address = f"{reverse('admin:pipelines_datasetrow_changelist')}?dataset={dataset.pk}"
        return format_html('{} <a class="text-link" href="{}">All rows</a>', SafeString(table), address)

    def save_model(self, request: HttpRequest, obj: Dataset, form: Any, change: bool) -> None:
        self.show_saved(obj, save(obj, obj.tenant_id, form.cleaned_data).pk)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        dataset = self.get_object(request, object_id)
        reading = datasets.schedules_reading(dataset) if dataset is not None else []
        if reading:
            messages.error(request, f"Not deleted: it is read by the schedules {', '.join(reading[:10])}.")
            return HttpResponseRedirect(page_of(Dataset, object_id))
        return super().delete_view(request, object_id, extra_context)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        # Do not list the rows: there may be a hundred thousand, and nothing else refers to them.
        deleted = [f"{dataset}, with its {describe_count(dataset.rows.count(), 'row')}" for dataset in objs]
        return deleted, {"datasets": len(deleted)}, set(), []

    def delete_model(self, request: HttpRequest, obj: Dataset) -> None:
        datasets.delete(obj.tenant_id, obj.pk)

    @action(description="Upload rows", url_path="upload", icon="upload", permissions=["change"])
    def upload(self, request: HttpRequest, object_id: str) -> HttpResponse:
        dataset = self.get_object(request, object_id)
        if dataset is None or dataset.source not in (Source.DB, Source.CACHE):
            return HttpResponseRedirect(reverse("admin:pipelines_dataset_changelist"))
        context = {**self.admin_site.each_context(request), "opts": self.opts}
        return page(request, dataset, context, done=self._answer_upload)

    def _answer_upload(self, request: HttpRequest, dataset: Dataset, message: str) -> HttpResponse:
        self.log_change(request, dataset, message)
        messages.success(request, message)
        return HttpResponseRedirect(page_of(Dataset, dataset.pk))


@admin.register(DatasetRow)
class DatasetRowAdmin(RecordAdmin):
    list_display = ("key", "dataset_name", "tenant", "row_json")
    list_select_related = ("dataset",)
    search_fields = ("=key", "dataset__name")
    ordering = ("pk",)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        return lookup == "dataset" or super().lookup_allowed(lookup, value, request)

    @display(description="Dataset")
    def dataset_name(self, row: DatasetRow) -> str:
        return row.dataset.name

    row_json = json_of("data", "Row")


# Files between their preview and storing their rows: in Redis, for a quarter of an hour.


SECONDS = 900


def keep(owner: str, name: str, raw: bytes) -> str:
    """Keep a file for its owner. Return the handle for reading it again."""
    handle = secrets.token_urlsafe(16)
    client().set(keys.file_of(owner, handle), orjson.dumps(name) + b"\n" + raw, ex=SECONDS)
    return handle


def read_kept(owner: str, handle: str) -> tuple[bytes, str] | None:
    """Return the file and its name, or None if it has expired or belongs to another owner."""
    value: Any = client().get(keys.file_of(owner, handle[:50]))
    if value is None:
        return None
    name, _, raw = value.partition(b"\n")
    return raw, orjson.loads(name)
