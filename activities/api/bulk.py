"""One thing done to all activities that a filter finds: counted first, then as a job whose progress can be watched."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.db.models import Q, QuerySet
from django.http import QueryDict
from drf_spectacular.utils import OpenApiExample
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from activities import bulk
from activities.api.bulk_bodies import ARGUMENTS, BulkSerializer, as_query, as_stored
from activities.api.bulk_shown import JOBS, BulkItemSerializer, BulkJobSerializer, BulkPreviewSerializer
from activities.api.decisions import EmptySerializer
from activities.api.filters import ActivityFilter
from activities.api.serializers import link_of
from activities.models import Activity, BulkItem, BulkJob
from activities.states import LinkKind
from agents.api.digests import Digested
from agents.api.documentation import IDEMPOTENCY_KEY, IF_MATCH, operation
from agents.api.strict import read
from tenants.api.faults import InvalidRequest, extend
from tenants.api.views import TenantView, TenantViewSet
from tenants.models import Role

SAMPLE = 10


class BulkOfActivities(TenantView):
    queryset = Activity.objects
    pagination_class = None
    filter_backends = ()
    throttle_cost = 10.0  # it looks at as much as ten pages of a list
    scope = "activities"
    required_role: ClassVar[Role] = Role.OPERATOR

    @operation(
        "Do one thing to many activities",
        request=BulkSerializer,
        answers={202: BulkJobSerializer, 200: BulkPreviewSerializer},
        refusals=(400, 409),
        parameters=(IDEMPOTENCY_KEY,),
        examples=[
            OpenApiExample(
                "How many there are",
                {"action": "cancel", "filter": {"status": ["created"]}, "dry_run": True},
                request_only=True,
            ),
            OpenApiExample(
                "Do it",
                {
                    "action": "reassign",
                    "filter": {"agent_role": "qa"},
                    "expected_count": 12,
                    "agent_role": "dev",
                    "reason": "Busy.",
                },
                request_only=True,
            ),
        ],
    )
    def post(self, request: Request) -> Response:
        """With `dry_run` the answer is the count and a sample. With `expected_count` a job is made that does it in portions: each
        activity at most once, and what is no longer in a state for it is skipped."""
        body = read(BulkSerializer, request.data)
        chosen = body["filter"]
        found = self._found(chosen)
        if body.get("dry_run"):
            return Response(self._preview(found))
        job = bulk.start(
            self.tenant_id,
            body["action"],
            list(found.order_by("pk").values_list("pk", flat=True)),
            expected=body["expected_count"],
            filter=as_stored(chosen),
            arguments={name: body[name] for name in ARGUMENTS if name in body},
            actor=self.principal.actor,
        )
        return Response(BulkJobSerializer(job).data, status=202, headers={"Location": f"{JOBS}{job.pk}/"})

    def _found(self, chosen: dict[str, Any]) -> QuerySet[Activity]:
        """As the list finds them, by the same filters. A gate ends with what waits behind it, so it is never among them."""
        query = as_query(chosen)
        words = query.pop("search", None)
        data = QueryDict(mutable=True)
        data.update(query)
        rows = self.get_queryset().exclude(link_kind=LinkKind.GATE)
        filters = ActivityFilter(data=data, queryset=rows, request=self.request)
        if not filters.is_valid():
            faults = [
                (extend("filter", name), str(text))
                for name, texts in filters.errors.items()
                for text in texts
            ]
            raise InvalidRequest(faults)
        found: QuerySet[Activity] = filters.qs
        return _with_words(found, words) if words else found

    def _preview(self, found: QuerySet[Activity]) -> dict[str, Any]:
        newest = found.order_by("-created_at", "-pk").only("id", "name", "status")[:SAMPLE]
        sample = [
            {"id": one.pk, "name": one.name, "status": one.status, "link": link_of(one.pk)} for one in newest
        ]
        return {"dry_run": True, "count": found.count(), "sample": sample}


class BulkJobViewSet(Digested, TenantViewSet):
    queryset = BulkJob.objects
    serializer_class = BulkJobSerializer
    filterset_fields = ("status", "action")
    ordering_fields = ("created_at",)
    lookup_value_converter = "uuid"
    scope = "activities"
    required_role: ClassVar[dict[str, Role]] = {"cancel": Role.OPERATOR}

    @operation("Bulk jobs, newest first", answer=BulkJobSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(BulkJobSerializer(page, many=True).data)

    @operation("One bulk job with its progress", answer=BulkJobSerializer, refusals=(404,))
    def retrieve(self, request: Request, pk: UUID) -> Response:
        return Response(BulkJobSerializer(self.get_object()).data)

    @operation(
        "Stop a bulk job",
        request=EmptySerializer,
        answer=BulkJobSerializer,
        refusals=(404, 409, 412),
        parameters=(IDEMPOTENCY_KEY, IF_MATCH),
    )
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: UUID) -> Response:
        """What is done stays done; the rest stays as it is."""
        read(EmptySerializer, request.data)
        self.refuse_changed(BulkJobSerializer(self.get_object()).data)
        bulk.cancel(self.tenant_id, pk, actor=self.principal.actor)
        return Response(BulkJobSerializer(self.get_object()).data)


class BulkItems(TenantViewSet):
    """The activities of one job."""

    queryset = BulkItem.objects
    serializer_class = BulkItemSerializer
    filterset_fields = ("state",)
    ordering = ("id",)
    scope = "activities"

    def get_queryset(self) -> QuerySet[Any]:
        rows = super().get_queryset()
        return (
            rows if getattr(self, "swagger_fake_view", False) else rows.filter(job_id=self.kwargs["job_id"])
        )

    @operation(
        "What became of each activity of a bulk job",
        answer=BulkItemSerializer(many=True),
        refusals=(400, 404),
    )
    def list(self, request: Request, job_id: UUID) -> Response:
        bulk.refuse_unknown(self.tenant_id, job_id)
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
        return self.get_paginated_response(BulkItemSerializer(page, many=True).data)


def _with_words(rows: QuerySet[Activity], words: str) -> QuerySet[Activity]:
    """As `?search=` narrows the list: every word is in the name or in the description."""
    for word in words.split():
        rows = rows.filter(Q(name__icontains=word) | Q(description__icontains=word))
    return rows
