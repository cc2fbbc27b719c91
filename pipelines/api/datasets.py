"""Datasets: a tenant's own tables, which data source strings read."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from agents.api.strict import read
from pipelines import datasets
from pipelines.api.dataset_bodies import (
    DatasetBodySerializer,
    DatasetPatchSerializer,
    NewDatasetSerializer,
)
from pipelines.api.datasets_shown import DATASETS, DatasetSerializer
from pipelines.api.large_bodies import LargeBodies
from pipelines.data_sources import Source
from pipelines.datasets import Declaration
from pipelines.models import Dataset
from tenants.api.faults import InvalidRequest
from tenants.api.versions import Versioned
from tenants.api.views import TenantViewSet
from tenants.models import Role


class DatasetViewSet(LargeBodies, Versioned, TenantViewSet):  # type: ignore[misc]  # `request` is the view's
    queryset = Dataset.objects
    serializer_class = DatasetSerializer
    filterset_fields = ("source",)
    search_fields = ("name", "description")
    ordering_fields = ("name", "created_at", "updated_at")
    ordering = ("name",)
    lookup_field = "name"
    reject_duplicate_keys = True
    scope = "datasets"
    required_role: ClassVar[dict[str, Role]] = dict.fromkeys(
        ("create", "update", "partial_update", "destroy"), Role.ADMIN
    )
    location_fault: str | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Looks the name of an address up before the transaction of the request begins."""
        super().initial(request, *args, **kwargs)
        body: Any = request.data if request.method in ("POST", "PUT", "PATCH") else None
        if isinstance(body, dict) and isinstance(body.get("location"), str):
            source = body.get("source", Source.API)  # a change need not say it
            self.location_fault = datasets.fault_of_location(source, body["location"].strip())

    @operation("The datasets", answer=DatasetSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(DatasetSerializer(page, many=True).data)

    @operation("One dataset", answer=DatasetSerializer, refusals=(404,))
    def retrieve(self, request: Request, name: str) -> Response:
        return Response(DatasetSerializer(self.get_object()).data)

    @operation(
        "Make a dataset, with its first rows",
        request=NewDatasetSerializer,
        answer=DatasetSerializer,
        status=201,
        refusals=(400, 409),
        parameters=(IDEMPOTENCY_KEY,),
    )
    def create(self, request: Request) -> Response:
        """Rows of the source `cache` are gone after a while; those of `api` and `file` are read where they are."""
        body = read(NewDatasetSerializer, request.data)
        made = datasets.create(self.tenant_id, Declaration(**body, location_fault=self.location_fault))
        return Response(
            DatasetSerializer(made).data, status=201, headers={"Location": f"{DATASETS}{made.name}/"}
        )

    @operation(
        "Change a dataset",
        request=DatasetBodySerializer,
        answer=DatasetSerializer,
        refusals=(400, 404, 409, 412),
        parameters=(IF_MATCH,),
    )
    def update(self, request: Request, name: str) -> Response:
        """Rows that are not given stay, and must fit the new fields; what they hold in a field that goes is dropped."""
        dataset = self.get_object()
        body = {"location": "", "description": "", **read(DatasetBodySerializer, request.data)}
        faults = [
            (member, f"cannot be changed: it is {getattr(dataset, member)}")
            for member in ("name", "source")
            if body.pop(member, getattr(dataset, member)) != getattr(dataset, member)
        ]
        if faults:
            raise InvalidRequest(faults)
        return self._changed(dataset, body)

    @operation(
        "Change some members of a dataset",
        request=DatasetPatchSerializer,
        answer=DatasetSerializer,
        refusals=(400, 404, 409, 412),
        parameters=(IF_MATCH,),
    )
    def partial_update(self, request: Request, name: str) -> Response:
        """`fields`, if given, are all fields that there will be."""
        dataset = self.get_object()
        return self._changed(dataset, read(DatasetPatchSerializer, request.data))

    @operation(
        "Delete a dataset with its rows",
        answer=None,
        status=204,
        refusals=(404, 409, 412),
        notes={409: "Schedules read it; the detail names them."},
        parameters=(IF_MATCH,),
    )
    def destroy(self, request: Request, name: str) -> Response:
        datasets.delete(self.tenant_id, self.get_object().pk)
        return Response(status=204)

    def _changed(self, dataset: Dataset, body: dict[str, Any]) -> Response:
        changed = datasets.change(self.tenant_id, dataset.pk, **body, location_fault=self.location_fault)
        return Response(DatasetSerializer(changed).data)
