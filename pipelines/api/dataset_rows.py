"""The rows of a dataset: listed, added, changed and deleted."""

from __future__ import annotations

from typing import ClassVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from pipelines import datasets
from pipelines.api.dataset_bodies import (
    FileSerializer,
    RowsSerializer,
)
from pipelines.api.datasets_shown import FilledSerializer, RowSerializer
from pipelines.api.large_bodies import LargeBodies
from pipelines.api.uploads import CSV, CsvParser, FileParser, given_in
from pipelines.exceptions import DatasetNotFound
from pipelines.models import Dataset, DatasetRow
from tenants.api.faults import InvalidRequest
from tenants.api.filters import refuse_unknown
from tenants.api.parsers import StrictJSONParser
from tenants.api.versions import Versioned
from tenants.api.views import TenantViewSet
from tenants.models import Role

REPLACE = "replace"


class DatasetRows(LargeBodies, Versioned, TenantViewSet):  # type: ignore[misc]  # `request` is the view's
    queryset = DatasetRow.objects
    serializer_class = RowSerializer
    parser_classes = (StrictJSONParser, CsvParser, FileParser)
    allows_array = True
    reject_duplicate_keys = True
    ordering = ("id",)
    scope = "datasets"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(("create", "destroy"), Role.ADMIN)

    @operation(
        "The rows of a dataset, in the order in which they were added",
        answer=RowSerializer(many=True),
        refusals=(400, 404, 409),
    )
    def list(self, request: Request, name: str) -> Response:
        """Those that are kept in the database; others are read when a schedule runs."""
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
            OpenApiParameter(REPLACE, bool, "query", description="Remove all rows that are not given."),
        ),
    )
    def create(self, request: Request, name: str) -> Response:
        """As JSON, as CSV with a header, or as a file of either. All rows are stored, or none: every fault is named by its path."""
        replace = self._replaces(request)
        dataset = self._dataset(name)
        self.check_if_match(dataset.version)
        filled = datasets.fill(self.tenant_id, dataset.pk, given_in(request.data), replace=replace)
        return Response(FilledSerializer(filled).data)

    @operation("Delete a row", answer=None, status=204, refusals=(404, 409, 412), parameters=(IF_MATCH,))
    def destroy(self, request: Request, name: str, key: str) -> Response:
        dataset = self._dataset(name)
        self.check_if_match(dataset.version)
        datasets.remove(self.tenant_id, dataset.pk, key)
        return Response(status=204)

    def _dataset(self, name: str) -> Dataset:
        rows = Dataset.objects.for_tenant(self.tenant_id)
        if self.request.method not in ("GET", "HEAD"):
            rows = rows.select_for_update()
        found: Dataset | None = rows.filter(name=name).first()
        if found is None:
            raise DatasetNotFound(f"There is no dataset {name!r}.")
        return found

    def _replaces(self, request: Request) -> bool:
        self.query_parameters = (REPLACE,)
        refuse_unknown(request, self)
        text = request.query_params.get(REPLACE, "false")
        if text not in ("true", "false"):
            raise InvalidRequest([(REPLACE, "must be true or false")])
        return text == "true"
