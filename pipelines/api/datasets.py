"""The API of datasets and their rows."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, ClassVar

from django.conf import settings
from django.http.multipartparser import MultiPartParserError
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema_field
from rest_framework import serializers
from rest_framework.parsers import BaseParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from pipelines import datasets
from pipelines.data_sources import FieldType, Source
from pipelines.data_sources.catalogue import ABOUT_TABLES
from pipelines.datasets import Declaration, Upload
from pipelines.datasets.validation import most_values
from pipelines.definition import DefinitionError
from pipelines.exceptions import NotFound
from pipelines.models import Dataset, DatasetRow
from tenants.api.bodies import BodyTooLarge, StrictJSONParser, body_limit
from tenants.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, change, creation, operation, removal
from tenants.api.etags import Versioned
from tenants.api.filters import parameter_errors, refuse
from tenants.api.problems import InvalidRequest, flatten_errors
from tenants.api.serializers import (
    OPTIONAL,
    Computed,
    Member,
    OneOf,
    ResponseSerializer,
    StrictSerializer,
    Text,
    read,
)
from tenants.api.views import TenantViewSet, VersionedResource, describe_resource
from tenants.models import Role

# Bodies with rows may be larger than others.


class LargeBodies:
    """For views that accept rows: allows more bytes and values, up to the limits of datasets."""

    @property
    def max_body_bytes(self) -> int:
        return int(settings.ORCHESTRATOR_DATASET_BODY_BYTES)

    @property
    def max_body_values(self) -> int:
        return most_values()


@extend_schema_field(
    {
        "type": "object",
        "additionalProperties": {"type": "string", "enum": list(FieldType)},
        "example": {"id": "string", "enabled": "boolean", "createdAt": "datetime"},
    }
)
class Fields(Member):
    """The fields by name, with their types."""


@extend_schema_field({"type": "array", "items": {"type": "object"}})
class Rows(serializers.Field[Any, Any, Any, Any]):
    """A list of rows. Their values are checked against the types of the fields."""

    default_error_messages = {"invalid": "must be a list of objects"}

    def to_internal_value(self, data: Any) -> Upload:
        if not isinstance(data, list):
            self.fail("invalid")
        return Upload(data)

    def to_representation(self, value: Any) -> Any:
        return value


UNCHANGEABLE = ("name", "source")


class DatasetPatchSerializer(StrictSerializer):
    """Changes to a dataset. Its name and its source cannot be changed."""

    location = Text(
        allow_blank=True,
        help_text="For the source `api`: a URL that returns a list of objects.",
        **OPTIONAL,
    )
    description = Text(allow_blank=True, trim_whitespace=False, **OPTIONAL)
    fields = Fields(help_text="If there is a field `id`, its values identify the rows.", **OPTIONAL)  # type: ignore[assignment]
    rows = Rows(help_text="Rows that replace all existing rows.", **OPTIONAL)


class DatasetBodySerializer(DatasetPatchSerializer):
    """A complete dataset. Omitted members are cleared, except its rows."""

    name = Text(help_text="If sent, the same as in the address.", **OPTIONAL)
    source = OneOf(
        choices=list(Source), help_text="If sent, the current source; it cannot be changed.", **OPTIONAL
    )  # type: ignore[assignment]
    fields = Fields(help_text="If there is a field `id`, its values identify the rows.")

    def errors_of_combination(self, attrs: Mapping[str, Any], invalid: Container[str]) -> dict[str, Any]:
        present = {member: getattr(self.context["dataset"], member) for member in UNCHANGEABLE}
        return {
            member: [f"cannot be changed: it is {value}"]
            for member, value in present.items()
            if attrs.get(member, value) != value
        }


class NewDatasetSerializer(DatasetPatchSerializer):
    """A new dataset."""

    name = Text(trim_whitespace=False, help_text=f"The name in data sources: {ABOUT_TABLES}.")
    source = OneOf(  # type: ignore[assignment]
        choices=list(Source), help_text="Where the rows are stored. Default: db.", **OPTIONAL
    )
    fields = Fields(help_text="If there is a field `id`, its values identify the rows.")
    rows = Rows(help_text="The first rows.", **OPTIONAL)


class RowsSerializer(StrictSerializer):
    """Rows to add. A row whose `id` exists already replaces that row."""

    rows = Rows()


class FileSerializer(serializers.Serializer[Any]):
    """A file of rows: .csv or .json."""

    file = serializers.FileField()


DATASETS = "/api/v1/datasets/"


class DatasetSerializer(ResponseSerializer):
    """A tenant's own table: its rows, or the place where they are read."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    source = serializers.CharField(  # type: ignore[assignment]  # a member of the object
        help_text=f"One of {', '.join(Source)}."
    )
    location = serializers.CharField(help_text="The URL of the rows, for the source `api`.")
    description = serializers.CharField()
    fields = serializers.DictField(child=serializers.CharField())  # type: ignore[assignment]  # a member of the object
    row_count = Computed(
        int | None,
        lambda dataset: datasets.number_of_rows(dataset),
        help_text="Null if the rows are not stored here.",
    )
    version = serializers.IntegerField(
        help_text="Increases with every change, also of rows; the ETag begins with it."
    )
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    link = Computed(str, lambda dataset: f"{DATASETS}{dataset.name}/")


class RowSerializer(serializers.Serializer[Any]):
    """One row. `key` is its `id` as text, or a generated id if the dataset has no field `id`."""

    key = serializers.CharField()
    data = serializers.DictField()  # type: ignore[assignment]  # a member, not the attribute


class FilledSerializer(ResponseSerializer):
    """The result for the rows."""

    added = serializers.IntegerField()
    updated = serializers.IntegerField(help_text="Existing rows that were changed.")
    removed = serializers.IntegerField()
    rows = serializers.IntegerField(help_text="The number of rows now.")
    version = serializers.IntegerField(help_text="The version of the dataset; the ETag begins with it.")


@describe_resource(many="The datasets", one="One dataset")
class DatasetViewSet(LargeBodies, VersionedResource):
    queryset = Dataset.objects
    serializer_class = DatasetSerializer
    address = DATASETS
    filterset_fields = ("source",)
    search_fields = ("name", "description")
    ordering_fields = ("name", "created_at", "updated_at")
    ordering = ("name",)
    lookup_field = "name"
    volatile = ("row_count",)  # rows of the source `cache` expire
    scope = "datasets"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("create", "update", "partial_update", "destroy"), Role.ADMIN
    )
    location_error: str | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Look up the host of a location before the transaction of the request begins."""
        super().initial(request, *args, **kwargs)
        body: Any = request.data if request.method in ("POST", "PUT", "PATCH") else None
        if isinstance(body, dict) and isinstance(body.get("location"), str):
            source = body.get("source", Source.API)  # a change may omit it
            self.location_error = datasets.error_of_location(source, body["location"].strip())

    @creation("Create a dataset, with its first rows", NewDatasetSerializer, DatasetSerializer)
    def create(self, request: Request) -> Response:
        """Rows of the source `cache` are deleted after some time. Rows of `api` and `file` are not stored, but read when they are
        needed."""
        body = read(NewDatasetSerializer, request.data)
        dataset = datasets.create(self.tenant_id, Declaration(**body, location_error=self.location_error))
        return self.answer_created(dataset)

    @change("Change a dataset", DatasetBodySerializer, DatasetSerializer, refusals=(404, 409))
    def update(self, request: Request, name: str) -> Response:
        """Without `rows`, the existing rows stay and must match the new fields; their values in removed fields are dropped."""
        dataset = self.get_object()
        try:
            body = self.read_change(DatasetBodySerializer, dataset=dataset)
        except serializers.ValidationError as error:
            more = _errors_of_fields(dataset.name, request.data)
            raise InvalidRequest([*flatten_errors(error.detail), *more]) from error
        changes = {name: value for name, value in body.items() if name not in UNCHANGEABLE}
        return self._change(dataset, {"location": "", "description": "", **changes})

    @change(
        "Change some members of a dataset", DatasetPatchSerializer, DatasetSerializer, refusals=(404, 409)
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """`fields`, if sent, replaces all fields."""
        dataset = self.get_object()
        return self._change(dataset, self.read_change(DatasetPatchSerializer))

    @removal(
        "Delete a dataset with its rows",
        refusals=(404, 409, 412),
        notes={409: "Schedules use it; `detail` names them."},
    )
    def destroy(self, request: Request, name: str) -> Response:
        datasets.delete(self.tenant_id, self.get_object().pk)
        return Response(status=204)

    def _change(self, dataset: Dataset, body: dict[str, Any]) -> Response:
        changed = datasets.change(self.tenant_id, dataset.pk, **body, location_error=self.location_error)
        return Response(self.show(changed))


def _errors_of_fields(name: str, body: Any) -> list[tuple[str, str]]:
    """Return the errors of the fields and rows in a body that is refused anyway."""
    if not isinstance(body, dict) or body.get("fields") is None:
        return []
    rows = body.get("rows")
    try:
        datasets.check_fields(name, body["fields"], Upload(rows) if isinstance(rows, list) else None)
    except DefinitionError as error:
        return [(each.path, each.message) for each in error.errors]
    return []


# Rows in the body of a request: as JSON, as CSV, or as a file of either in a form.
#
# All parsers return plain JSON data, so that an Idempotency-Key recognizes equal rows.


CSV = "text/csv"
FILE = "file"  # the field of the form


class Texts(dict[str, Any]):
    """The rows of a CSV. A type of its own, so that no JSON body can look like it."""

    def __init__(self, upload: Upload) -> None:
        super().__init__(rows=upload.rows, lines=upload.lines)


class CsvParser(BaseParser):
    """Parses `text/csv`: UTF-8, a header, quotes as in RFC 4180."""

    media_type = CSV

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit = body_limit((parser_context or {}).get("view"))
        return Texts(datasets.read_csv(_within(stream.read(limit + 1), limit)))


class FileParser(MultiPartParser):
    """Parses a form with one file. Its name ends in .csv or .json, or its type says which it is."""

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit = body_limit((parser_context or {}).get("view"))
        try:
            form = super().parse(stream, media_type, parser_context)
        except MultiPartParserError as error:
            raise InvalidRequest([("", "the form cannot be read")]) from error
        errors = [
            (name, "is not a member of this form") for name in (*form.data, *form.files) if name != FILE
        ]
        if FILE not in form.files:
            errors.append((FILE, "is required: a file of CSV or JSON"))
        elif len(form.files.getlist(FILE)) > 1:
            errors.append((FILE, "must be a single file"))
        if errors:
            raise InvalidRequest(errors)
        file: Any = form.files[FILE]
        raw = _within(file.read(limit + 1), limit)
        kind = _kind_of(file)
        return Texts(datasets.read_csv(raw)) if kind == CSV else {"rows": datasets.read_json(raw).rows}


def read_rows(data: Any) -> Upload:
    """Return the rows of a parsed body."""
    if isinstance(data, Texts):
        return Upload(data["rows"], data["lines"])
    if isinstance(data, dict) and data.keys() - {"rows"}:
        raise InvalidRequest([(name, "is not a member of this object") for name in data if name != "rows"])
    if isinstance(data, dict) and not isinstance(data.get("rows"), list):
        raise InvalidRequest([("rows", "must be a list of objects")])
    return Upload(data if isinstance(data, list) else data["rows"])


def _kind_of(file: Any) -> str:
    name = str(file.name or "").lower()
    if name.endswith(".csv"):
        return CSV
    if name.endswith(".json"):
        return "application/json"
    if file.content_type in (CSV, "application/json"):
        return str(file.content_type)
    raise InvalidRequest([(FILE, "must be a .csv or .json file")])


def _within(raw: bytes, limit: int) -> bytes:
    if len(raw) > limit:
        raise BodyTooLarge(f"The body may have at most {limit} bytes.")
    return raw


REPLACE = "replace"


class DatasetRows(LargeBodies, Versioned, TenantViewSet):
    queryset = DatasetRow.objects
    serializer_class = RowSerializer
    parser_classes = (StrictJSONParser, CsvParser, FileParser)
    allows_array = True
    ordering = ("id",)
    scope = "datasets"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(("create", "destroy"), Role.ADMIN)

    @operation(
        "The rows of a dataset, in the order in which they were added",
        answer=RowSerializer(many=True),
        refusals=(400, 404, 409),
    )
    def list(self, request: Request, name: str) -> Response:
        """Only for rows that are stored in the database; others are read when a schedule runs."""
        dataset = self._dataset(name)
        datasets.refuse_not_listed(dataset)
        own = self.get_queryset().filter(dataset_id=dataset.pk)
        page = self.paginate_queryset(self.filter_queryset(own)) or []
        return self.get_paginated_response([{"key": row.key, "data": row.data} for row in page])

    @operation(
        "Add rows, or change those with the same id",
        request={
            "application/json": RowsSerializer,
            CSV: OpenApiTypes.STR,
            "multipart/form-data": FileSerializer,
        },
        answer=FilledSerializer,
        refusals=(400, 404, 409, 412),
        parameters=(
            IDEMPOTENCY_KEY,
            IF_MATCH,
            OpenApiParameter(
                REPLACE, bool, "query", description="Whether to remove all rows that are not in the request."
            ),
        ),
    )
    def create(self, request: Request, name: str) -> Response:
        """The rows are JSON, CSV with a header, or a file of either. All rows are stored, or none if there is an error. Errors name their
        paths."""
        self.query_parameters = (REPLACE,)
        errors = parameter_errors(request, self)
        text = request.query_params.get(REPLACE, "false")
        if text not in ("true", "false"):
            errors.append((REPLACE, "must be true or false"))
        refuse(errors)
        replace = text == "true"
        dataset = self._dataset(name)
        self.check_if_match(dataset.version)
        filled = datasets.fill(self.tenant_id, dataset.pk, read_rows(request.data), replace=replace)
        return Response(FilledSerializer(filled).data)

    @removal("Delete a row", refusals=(404, 409, 412))
    def destroy(self, request: Request, name: str, key: str) -> Response:
        dataset = self._dataset(name)
        self.check_if_match(dataset.version)
        datasets.remove(self.tenant_id, dataset.pk, key)
        return Response(status=204)

    def _dataset(self, name: str) -> Dataset:
        rows = Dataset.objects.for_tenant(self.tenant_id)
        if self.request.method not in ("GET", "HEAD"):
            rows = rows.select_for_update()
        return rows.filter(name=name).first_or_raise(NotFound("dataset", name))
