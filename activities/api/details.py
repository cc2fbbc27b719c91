"""What belongs to one activity: its output, its runs, its history, and why it waits."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import exceptions as rest
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.viewsets import ViewSetMixin

from activities import outputs, run_logs, selectors, wait_reasons
from activities.api.serializers import (
    MomentSerializer,
    OutputSerializer,
    RunSerializer,
    WhySerializer,
    WorkedOnSerializer,
)
from activities.exceptions import NotFound
from activities.execution import request as execution_request
from activities.models import Activity, ActivityRun
from activities.selectors import Moment
from activities.states import RunStatus
from agents.command_line import transcripts
from agents.contracts import LINE_KINDS
from tenants.api.documentation import operation
from tenants.api.filters import refuse_unknown, whole_number
from tenants.api.pagination import LIMIT, Cursor, CursorPagination
from tenants.api.problems import Fault, InvalidRequest
from tenants.api.serializers import ResponseSerializer
from tenants.api.views import TenantView
from tenants.context import tenant_scope

AFTER = "after"
MOST_LINES, USUAL_LINES = 1_000, 500


class LogLineShownSerializer(ResponseSerializer):
    """One line of a run's log."""

    number = serializers.IntegerField(help_text="Counts up by one from 1 within its run.")
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(choices=[(kind, kind) for kind in LINE_KINDS])
    text = serializers.CharField()


class LogPageSerializer(serializers.Serializer[Any]):
    """Lines in their order."""

    next = serializers.URLField(allow_null=True, help_text="The next page, if there is one by now.")
    previous = serializers.URLField(allow_null=True, help_text="Always null: a log is read forwards.")
    results = LogLineShownSerializer(many=True)
    cursor = serializers.IntegerField(help_text="What to give as `after` to go on, now or later.")
    dropped = serializers.IntegerField(
        help_text="Lines that a full log did not keep; a note at its end says so."
    )
    ended = serializers.BooleanField(help_text="Whether the run is over.")


class ActivityPart(TenantView):
    """Something of the activity that `activity_id` of the address names."""

    queryset: Any = Activity.objects
    scope = "activities"

    def activity(self, activity_id: UUID, *fields: str) -> Activity:
        """With these fields, or `output_ref`. Raises `NotFound`."""
        found: Activity | None = (
            Activity.objects.for_tenant(self.tenant_id)
            .only("id", *(fields or ("output_ref",)))
            .filter(pk=activity_id)
            .first()
        )
        if found is None:
            raise NotFound("activity", activity_id)
        return found


class ActivityOutput(ActivityPart):
    # MongoDB may take its time, and no transaction may wait for it.
    in_one_transaction = False

    @operation("What an activity produced", answer=OutputSerializer, refusals=(404, 503))
    def get(self, request: Request, activity_id: UUID) -> Response:
        """404 with the code `no_output` while there is none."""
        with tenant_scope(self.tenant_id):
            reference = self.activity(activity_id).output_ref
        found = outputs.read(self.tenant_id, reference) if reference else None
        if found is None:
            raise rest.NotFound(code="no_output")
        # An output never changes, so its id is tag enough.
        return Response(OutputSerializer(found).data, headers={"ETag": f'"{found.id}"'})


class ActivityInput(ActivityPart):
    # As for outputs.
    in_one_transaction = False
    pagination_class = None

    @operation("What an activity works on", answer=WorkedOnSerializer, refusals=(404, 503))
    def get(self, request: Request, activity_id: UUID) -> Response:
        """What its agent is given as `input`, or a person to judge: what it was submitted with, the output that it is about, and those of
        the steps before it. 404 with the code `no_input` when it works on nothing but its description and parameters."""
        with tenant_scope(self.tenant_id):
            found = self.activity(activity_id, "tenant_id", "input", "input_ref")
        given = execution_request.fetch(found, ()).input
        if given is None:
            raise rest.NotFound(code="no_input")
        return Response(given)


class ActivityRuns(ViewSetMixin, ActivityPart):
    """Also those that were lost or superseded."""

    queryset = ActivityRun.objects
    ordering = ("-started_at", "-id")

    @operation(
        "The attempts at an activity, newest first", answer=RunSerializer(many=True), refusals=(400, 404)
    )
    def list(self, request: Request, activity_id: UUID) -> Response:
        self.activity(activity_id)
        rows: QuerySet[Any] = self.get_queryset().filter(activity_id=activity_id)
        page = self.paginate_queryset(self.filter_queryset(rows)) or []
        return self.get_paginated_response(RunSerializer(page, many=True).data)


class RunTranscript(ActivityPart):
    # It is read from a file, piece by piece.
    in_one_transaction = False
    pagination_class = None

    @operation("What a command-line agent printed during a run", answer=OpenApiTypes.STR, refusals=(404,))
    def get(self, request: Request, activity_id: UUID, run_id: UUID) -> HttpResponseBase:
        """Plain text, as far as it is kept; lines of its standard error begin with `! `.

        404 with the code `no_transcript` when there is none on this machine: it is kept where the worker ran."""
        with tenant_scope(self.tenant_id):
            self.activity(activity_id)
            runs = ActivityRun.objects.for_tenant(self.tenant_id).filter(pk=run_id, activity_id=activity_id)
            pieces = transcripts.pieces(self.tenant_id, run_id) if runs.exists() else None
        if pieces is None:
            raise rest.NotFound(code="no_transcript")
        # A browser must not take it for a page, whatever the agent printed.
        headers = {
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": f'inline; filename="{run_id}.log"',
        }
        return StreamingHttpResponse(pieces, content_type="text/plain; charset=utf-8", headers=headers)


class RunLogLines(ActivityPart):
    # It is read from MongoDB, which may take its time.
    in_one_transaction = False
    pagination_class = None
    filter_backends = ()
    query_parameters = (AFTER,)

    @operation(
        "What an agent says during a run, line by line",
        answer=LogPageSerializer,
        refusals=(400, 404, 503),
        parameters=(
            OpenApiParameter(
                AFTER,
                {"type": "integer", "minimum": 0, "default": 0},
                description="Go on behind the line with this number: the `cursor` of the answer before.",
            ),
            OpenApiParameter(
                LIMIT,
                {"type": "integer", "minimum": 1, "default": USUAL_LINES},
                description=f"Lines per page. More than {MOST_LINES} count as {MOST_LINES}.",
            ),
        ),
    )
    def get(self, request: Request, activity_id: UUID, run_id: UUID) -> Response:
        """Oldest first, while it goes on and afterwards. Who follows asks again with `cursor`, when an event `run_log` says that there is
        more, or every second or two, until `ended` is true and there is nothing new."""
        refuse_unknown(request, self)
        faults: list[Fault] = []
        after = whole_number(request.query_params.get(AFTER), AFTER, faults)
        limit = whole_number(request.query_params.get(LIMIT), LIMIT, faults)
        if limit == 0:
            faults.append((LIMIT, "must be at least 1"))
        if faults:
            raise InvalidRequest(faults)
        with tenant_scope(self.tenant_id):
            self.activity(activity_id)
            runs = ActivityRun.objects.for_tenant(self.tenant_id).filter(pk=run_id, activity_id=activity_id)
            status = runs.values_list("status", flat=True).first()
        if status is None:
            raise rest.NotFound("There is no such run of this activity.")
        page = run_logs.read(
            self.tenant_id, run_id, after=after or 0, limit=min(limit or USUAL_LINES, MOST_LINES)
        )
        following = replace_query_param(request.build_absolute_uri(), AFTER, page.cursor)
        return Response(
            {
                "next": str(following) if page.more else None,
                "previous": None,
                "results": LogLineShownSerializer(page.lines, many=True).data,
                "cursor": page.cursor,
                "dropped": page.dropped,
                "ended": status != RunStatus.RUNNING,
            }
        )


class ActivityTimeline(ViewSetMixin, ActivityPart):
    @operation(
        "Everything that happened to an activity, oldest first",
        answer=MomentSerializer(many=True),
        refusals=(400, 404),
    )
    def list(self, request: Request, activity_id: UUID) -> Response:
        """Transitions with who acted, wakes with their reasons, runs with their ends, calls of tools, votes and deadlines, in one list. A
        deadline may lie ahead."""
        self.activity(activity_id)
        refuse_unknown(request, self)
        return paged(selectors.timeline(self.tenant_id, activity_id), request)


class ActivityWhy(ActivityPart):
    # It may ask Redis.
    in_one_transaction = False
    pagination_class = None

    @operation("Why an activity does not run right now", answer=WhySerializer, refusals=(404,))
    def get(self, request: Request, activity_id: UUID) -> Response:
        """Never fails for a server that is away: then the answer is less exact and says so."""
        return Response(WhySerializer(wait_reasons.why(self.tenant_id, activity_id)).data)


# Pages of a timeline. It is joined from several tables, so its pages are cut here and not by the database.


ORDERING = ("at", "order")


class MomentPagination(CursorPagination):
    """`CursorPagination` over a sorted list in memory: a moment keeps its place, whatever is added later."""

    default_limit = 100

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self._address = request.build_absolute_uri()
        self._ordering = ORDERING
        cursor, limit = self._cursor(request, ORDERING), self._limit(request)
        first, last = _range(queryset, cursor, limit)
        self._page = list(queryset[first:last])
        self._previous, self._next = bool(self._page) and first > 0, bool(self._page) and last < len(queryset)
        return self._page


def _range(moments: Sequence[Moment], cursor: Cursor | None, limit: int) -> tuple[int, int]:
    if cursor is None:
        return 0, limit
    place = bisect_right(moments, cursor.values, key=lambda moment: (moment.at, moment.order))
    if not cursor.backwards:
        return place, place + limit
    return max(0, place - 1 - limit), max(0, place - 1)


def paged(moments: Sequence[Moment], request: Request) -> Response:
    """The page that the request asks for."""
    pages = MomentPagination()
    page = pages.paginate_queryset(moments, request)
    return pages.get_paginated_response(
        [{"at": moment.at, "kind": moment.kind, **moment.facts} for moment in page]
    )
