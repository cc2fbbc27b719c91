"""Activities: submits and lists them, and returns their outputs, runs, logs and timelines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar
from uuid import UUID

import django_filters
from django.db.models import Q, QuerySet
from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, PolymorphicProxySerializer
from rest_framework import exceptions as rest
from rest_framework import serializers
from rest_framework.filters import search_smart_split
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.viewsets import ViewSetMixin

from activities import cancellation, outputs, run_logs, selectors, wait_reasons
from activities.api.allowed_actions import list_allowed_actions
from activities.api.decisions import DecisionActions
from activities.api.operations import OperationActions
from activities.api.serializers import (
    ActivitySerializer,
    MomentSerializer,
    OutputSerializer,
    RunSerializer,
    WhySerializer,
    WorkedOnSerializer,
    largest_body_with_output,
    link_of,
)
from activities.api.submissions import NewActivitySerializer, new_activity
from activities.decision_rules import GENERAL_ROLE
from activities.exceptions import NotFound
from activities.execution import request as execution_request
from activities.mailboxes import producer
from activities.models import Activity, ActivityRun
from activities.models.activity import AssigneeType, in_status
from activities.selectors import Moment
from activities.states import LinkKind, RunStatus, Status
from activities.submission import NewActivity, Submitted, submit
from agents.api.role_names import RoleFilter
from agents.command_line import transcripts
from agents.contracts import LINE_KINDS
from tenants import owned_ids
from tenants.api.documentation import operation, posting
from tenants.api.filters import (
    SEARCH_LENGTH,
    FlagFilter,
    ListFilter,
    MomentFilter,
    StrictFilterSet,
    WholeNumberFilter,
    parameter_errors,
    parse_whole_number,
    refuse,
)
from tenants.api.pagination import LIMIT, Cursor, CursorPagination
from tenants.api.problems import FieldError, InvalidRequest, flatten_errors
from tenants.api.serializers import OPTIONAL, Identifier, ResponseSerializer
from tenants.api.views import TenantView, VersionedResource, describe_resource
from tenants.context import tenant_scope
from tenants.models import Role


class StatusFilter(ListFilter, django_filters.ChoiceFilter):
    """One status, or several separated by commas."""

    def filter(self, rows: QuerySet[Any], value: list[str] | None) -> QuerySet[Any]:
        return rows.filter(in_status(*value)) if value else rows


class IdsFilter(ListFilter, django_filters.UUIDFilter):
    """One id, or several separated by commas."""


class ActivityFilter(StrictFilterSet):
    ids = IdsFilter(field_name="pk", help_text="One id, or several separated by commas.")
    status = StatusFilter(
        choices=[(s.value, s.value) for s in Status], help_text="One status, or several separated by commas."
    )
    agent_role = RoleFilter()
    human_role = django_filters.CharFilter()
    assignee_type = django_filters.ChoiceFilter(choices=AssigneeType.choices)
    priority = WholeNumberFilter()
    period = django_filters.UUIDFilter(field_name="period_id")
    pipeline = django_filters.UUIDFilter(field_name="pipeline_id")
    template = django_filters.CharFilter()
    pipeline_run = django_filters.UUIDFilter(field_name="pipeline_run_id")
    step = django_filters.CharFilter()
    branch = WholeNumberFilter()
    parent = django_filters.UUIDFilter(field_name="parent_id")
    deliverable = django_filters.UUIDFilter(field_name="deliverable_id")
    schedule = django_filters.UUIDFilter(field_name="schedule_id")
    dedup_key = django_filters.CharFilter()
    created_after = MomentFilter(field_name="created_at", lookup_expr="gte")
    created_before = MomentFilter(field_name="created_at", lookup_expr="lt")
    search = django_filters.CharFilter(
        method="with_words",
        max_length=SEARCH_LENGTH,
        help_text="Words that must all occur, each in the name, description, params, metadata or error. Only the newest "
        f"{selectors.SEARCHED:,} activities are searched; with `created_before`, the newest that were created "
        "before it.",
    )

    def with_words(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        before = self.form.cleaned_data.get("created_before")
        words = map(selectors.SearchWord, search_smart_split(value))  # type: ignore[arg-type]  # the stubs want a list of texts
        return selectors.containing(rows, self.request.user.tenant_id, words, before=before)


class InboxFilter(StrictFilterSet):
    human_role = django_filters.CharFilter()
    pipeline_run = django_filters.UUIDFilter(field_name="pipeline_run_id")
    deliverable = django_filters.UUIDFilter(field_name="deliverable_id")
    gate = FlagFilter(method="decisions", help_text="True: only decisions. False: only tasks.")
    mine = FlagFilter(
        method="of_caller",
        help_text="True: only items for the caller's own human roles or for reviewers in general, as in the console.",
    )

    def decisions(self, rows: Any, name: str, value: bool) -> Any:
        decided = Q(is_approval_gate=True) | Q(link_kind=LinkKind.REVIEW)
        return rows.filter(decided) if value else rows.exclude(decided)

    def of_caller(self, rows: Any, name: str, value: bool) -> Any:
        roles = self.request.user.human_roles
        return rows.filter(human_role__in=(*roles, GENERAL_ROLE)) if value and roles else rows


MOST_AT_ONCE = 1_000


class SubmittedSerializer(serializers.Serializer[Any]):
    """The result for one of several submitted activities."""

    id = serializers.UUIDField()
    created = serializers.BooleanField()
    deduplicated = serializers.BooleanField(
        help_text="Whether an unfinished activity has the same `dedup_key`; `id` is then the id of that activity."
    )
    link = serializers.CharField()


class SubmittedManySerializer(serializers.Serializer[Any]):
    results = SubmittedSerializer(many=True)


NEW = PolymorphicProxySerializer(
    component_name="NewActivityOrMany",
    serializers=[NewActivitySerializer, NewActivitySerializer(many=True)],
    resource_type_field_name=None,
    many=False,
)
SHOWN = PolymorphicProxySerializer(
    component_name="ActivityOrMany",
    serializers=[ActivitySerializer, SubmittedManySerializer],
    resource_type_field_name=None,
    many=False,
)


@describe_resource(many="List activities, newest first", one="One activity")
class ActivityViewSet(DecisionActions, OperationActions, VersionedResource):
    """One piece of work for an agent or a person."""

    queryset = Activity.objects.defer("input", "retry")
    serializer_class = ActivitySerializer
    filterset_class = ActivityFilter
    ordering_fields = ("created_at", "priority", "started_at", "finished_at", "due_at", "name")
    allows_array = True
    scope = "activities"
    required_role: ClassVar[dict[str, Role]] = {
        "create": Role.OPERATOR,
        **DecisionActions.required_role,
        **OperationActions.required_role,
    }

    @property
    def max_body_bytes(self) -> int | None:
        return largest_body_with_output() if self.action in ("approve", "complete") else None

    @posting(
        "Submit one activity, or a list of up to 1,000",
        NEW,
        answers={201: SHOWN, 200: SHOWN},
        examples=[
            OpenApiExample(
                "For an agent",
                {"name": "Check the order", "agent_role": "qa", "params": {"order": 4711}},
                summary="Work for an agent",
                request_only=True,
            ),
            OpenApiExample(
                "A question to a person",
                {"name": "May it go out?", "human_role": "editor", "is_approval_gate": True},
                summary="A decision by a person",
                request_only=True,
            ),
        ],
    )
    def create(self, request: Request) -> Response:
        """A list is created as a whole: if one of its activities is invalid, none is created. If an unfinished activity has the same
        `dedup_key`, nothing is created, and the answer is 200 with that activity and `deduplicated: true`."""
        if isinstance(request.data, list):
            return self._create_many(request.data)
        (item,) = self._validate([request.data], single=True)
        (submitted,) = self._submit([item])
        shown = self.show(Activity.objects.for_tenant(self.tenant_id).get(pk=submitted.id))
        if not submitted.created:
            return Response({**shown, "deduplicated": True})
        return Response(shown, status=201, headers={"Location": link_of(submitted.id)})

    def _create_many(self, bodies: Sequence[Any]) -> Response:
        if not 0 < len(bodies) <= MOST_AT_ONCE:
            raise InvalidRequest([("", f"must have 1 to {MOST_AT_ONCE} elements")])
        submitted = self._submit(self._validate(bodies))
        results = [
            {"id": one.id, "created": one.created, "deduplicated": not one.created, "link": link_of(one.id)}
            for one in submitted
        ]
        return Response({"results": results}, status=201 if any(one.created for one in submitted) else 200)

    def _validate(self, bodies: Sequence[Any], *, single: bool = False) -> Sequence[NewActivity]:
        body = NewActivitySerializer(
            data=bodies[0] if single else bodies, many=not single, context={"tenant_id": self.tenant_id}
        )
        body.is_valid()
        if errors := self._errors_of_outputs(bodies, single=single):
            raise InvalidRequest([*flatten_errors(body.errors), *errors])
        body.is_valid(raise_exception=True)
        validated = [body.validated_data] if single else body.validated_data
        return [
            new_activity(attrs, requested_by=self.principal.identity, mailbox_id=self._mailbox_of(attrs))
            for attrs in validated
        ]

    def _mailbox_of(self, attrs: Any) -> UUID | None:
        return producer.open_mailbox(self.tenant_id, attrs["mailbox"]).pk if "mailbox" in attrs else None

    def _errors_of_outputs(self, bodies: Sequence[Any], *, single: bool) -> list[FieldError]:
        """Return an error for each unknown `input_ref`, also of bodies with other errors.

        A deliverable may be one of the caller's own system, so its id is not checked.
        """
        identifier, ids = Identifier(**OPTIONAL), {}
        for index, body in enumerate(bodies):
            if isinstance(body, Mapping):
                with suppress(serializers.ValidationError):  # the body's own error says so
                    path = "input_ref" if single else f"[{index}].input_ref"
                    ids[path] = identifier.run_validation(body.get("input_ref"))
        return owned_ids.errors_of(self.tenant_id, "output", ids)

    def _submit(self, items: Sequence[NewActivity]) -> Sequence[Submitted]:
        cancellation.expire_repeated(
            self.tenant_id, {item.dedup_key for item in items if item.dedup_key}, actor="engine"
        )
        return submit(items, actor=self.principal.actor)

    def show(self, found: Any, *, many: bool = False) -> Any:
        activities = found if many else [found]
        context = {
            "waiting": wait_reasons.explain_many(self.tenant_id, activities),
            "allowed_actions": list_allowed_actions(self.principal, activities),
        }
        return self.serializer_class(found, many=many, context=context).data


# Views below one activity: its output, its runs, its history, and why it waits.

AFTER = "after"
MOST_LINES, USUAL_LINES = 1_000, 500


class LogLineShownSerializer(ResponseSerializer):
    """One line of a run's log."""

    number = serializers.IntegerField(help_text="The number of the line in its run: 1, 2, 3 and so on.")
    at = serializers.DateTimeField()
    kind = serializers.ChoiceField(choices=[(kind, kind) for kind in LINE_KINDS])
    text = serializers.CharField()


class LogPageSerializer(serializers.Serializer[Any]):
    """Log lines, in order."""

    next = serializers.URLField(allow_null=True, help_text="The next page, if there is one yet.")
    previous = serializers.URLField(
        allow_null=True, help_text="Always null, because a log is only read forwards."
    )
    results = LogLineShownSerializer(many=True)
    cursor = serializers.IntegerField(help_text="The value of `after` to continue with, now or later.")
    dropped = serializers.IntegerField(
        help_text="Number of lines that were dropped because the log was full; a note at its end says so."
    )
    ended = serializers.BooleanField(help_text="Whether the run has ended.")


class ActivityPart(TenantView):
    """Base of the views below one activity."""

    queryset: Any = Activity.objects
    scope = "activities"

    def find_address(self) -> QuerySet[Any]:
        return Activity.objects.for_tenant(self.tenant_id).filter(pk=self.kwargs["activity_id"])

    def activity(self, activity_id: UUID, *fields: str) -> Activity:
        """Return the activity with these fields, or with `output_ref`. Raises `NotFound`."""
        return (
            Activity.objects.for_tenant(self.tenant_id)
            .only("id", *(fields or ("output_ref",)))
            .get_or_raise(NotFound, "activity", activity_id)
        )


class ActivityOutput(ActivityPart):
    # No transaction may wait for MongoDB, which may be slow.
    in_one_transaction = False

    @operation("The output of an activity", answer=OutputSerializer, refusals=(404, 503))
    def get(self, request: Request, activity_id: UUID) -> Response:
        """404 with the code `no_output` if there is none yet."""
        with tenant_scope(self.tenant_id):
            reference = self.activity(activity_id).output_ref
        output = outputs.read(self.tenant_id, reference) if reference else None
        if output is None:
            raise rest.NotFound(code="no_output")
        # The id serves as the ETag, because an output never changes.
        return Response(OutputSerializer(output).data, headers={"ETag": f'"{output.id}"'})


class ActivityInput(ActivityPart):
    # No transaction may wait for MongoDB, which may be slow.
    in_one_transaction = False

    @operation("The input of an activity", answer=WorkedOnSerializer, refusals=(404, 503))
    def get(self, request: Request, activity_id: UUID) -> Response:
        """The `input` that its agent receives, or that a person judges: the submitted input, the output that it refers to, and the outputs
        of the steps before it. 404 with the code `no_input` if it works only on its description and parameters."""
        with tenant_scope(self.tenant_id):
            activity = self.activity(activity_id, "tenant_id", "input", "input_ref")
        input_ = execution_request.fetch(activity, ()).input
        if input_ is None:
            raise rest.NotFound(code="no_input")
        return Response(input_)


class ActivityRuns(ViewSetMixin, ActivityPart):
    """Every attempt is a run. Lost and superseded runs are included."""

    queryset = ActivityRun.objects
    ordering = ("-started_at", "-id")

    @operation("The runs of an activity, newest first", answer=RunSerializer(many=True), refusals=(400, 404))
    def list(self, request: Request, activity_id: UUID) -> Response:
        self.activity(activity_id)
        rows: QuerySet[Any] = self.get_queryset().filter(activity_id=activity_id)
        return self.answer_page(rows, RunSerializer)


def transcript_response(name: UUID, pieces: Iterable[bytes]) -> HttpResponseBase:
    """Return a transcript as plain text. The headers keep a browser from rendering as HTML what an agent printed."""
    headers = {
        "X-Content-Type-Options": "nosniff",
        "Content-Disposition": f'inline; filename="{name}.log"',
    }
    return StreamingHttpResponse(pieces, content_type="text/plain; charset=utf-8", headers=headers)


class RunTranscript(ActivityPart):
    # The transcript is streamed from a file.
    in_one_transaction = False

    @operation("What a command-line agent printed during a run", answer=OpenApiTypes.STR, refusals=(404,))
    def get(self, request: Request, activity_id: UUID, run_id: UUID) -> HttpResponseBase:
        """Plain text, as far as it is stored; lines of standard error begin with `! `.

        404 with the code `no_transcript` if this machine has none: a transcript is stored on the machine where the worker ran."""
        with tenant_scope(self.tenant_id):
            self.activity(activity_id)
            runs = ActivityRun.objects.for_tenant(self.tenant_id).filter(pk=run_id, activity_id=activity_id)
            pieces = transcripts.read(self.tenant_id, run_id) if runs.exists() else None
        if pieces is None:
            raise rest.NotFound(code="no_transcript")
        return transcript_response(run_id, pieces)


class RunLogLines(ActivityPart):
    # No transaction may wait for MongoDB, which may be slow.
    in_one_transaction = False
    pagination_class = None
    query_parameters = (AFTER, LIMIT)

    @operation(
        "The log lines of a run",
        answer=LogPageSerializer,
        refusals=(400, 404, 503),
        parameters=(
            OpenApiParameter(
                AFTER,
                {"type": "integer", "minimum": 0, "default": 0},
                description="Return the lines after this number: the `cursor` of the previous answer.",
            ),
            OpenApiParameter(
                LIMIT,
                {"type": "integer", "minimum": 1, "default": USUAL_LINES},
                description=f"Lines per page, at most {MOST_LINES}; larger values are reduced.",
            ),
        ),
    )
    def get(self, request: Request, activity_id: UUID, run_id: UUID) -> Response:
        """Oldest first, during the run and afterwards. To follow a log, request it again with `after` set to `cursor`, either when an event
        `run_log` announces more lines, or every second or two, until `ended` is true and no new lines are returned."""
        errors = parameter_errors(request, self)
        after = parse_whole_number(request.query_params.get(AFTER), AFTER, errors)
        limit = parse_whole_number(request.query_params.get(LIMIT), LIMIT, errors, least=1)
        refuse(errors)
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
        """One list of transitions with their actors, wakes with their reasons, runs with their results, tool calls, votes and deadlines. A
        deadline may be in the future."""
        self.activity(activity_id)
        pages = MomentPagination()
        refuse([*parameter_errors(request, self), *pages.errors_of(request)])
        page = pages.paginate_queryset(selectors.timeline(self.tenant_id, activity_id), request)
        return pages.get_paginated_response(
            [{"at": moment.at, "kind": moment.kind, **moment.facts} for moment in page]
        )


class ActivityWhy(ActivityPart):
    # It may ask Redis.
    in_one_transaction = False

    @operation("Why an activity does not run right now", answer=WhySerializer, refusals=(404,))
    def get(self, request: Request, activity_id: UUID) -> Response:
        """Works even while Redis is unavailable; the answer is then less exact and says so."""
        return Response(WhySerializer(wait_reasons.why(self.tenant_id, activity_id)).data)


# Pages of a timeline. It combines several tables, so pages are cut here and not by the database.


ORDERING = ("at", "order")


class MomentPagination(CursorPagination):
    """`CursorPagination` over a sorted list in memory. Entries that are added later do not move the earlier ones."""

    default_limit = 100

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self._address = request.build_absolute_uri()
        self._ordering = ORDERING
        cursor, limit = self._cursor(request, ORDERING), self._limit(request)
        first, last = _range(queryset, cursor, limit)
        self._page = list(queryset[first:last])
        self._previous, self._next = bool(self._page) and first > 0, bool(self._page) and last < len(queryset)
        return self._page

    def _choose_ordering(self, request: Request, view: Any) -> tuple[str, ...]:
        return ORDERING


def _range(moments: Sequence[Moment], cursor: Cursor | None, limit: int) -> tuple[int, int]:
    if cursor is None:
        return 0, limit
    place = bisect_right(moments, cursor.values, key=lambda moment: (moment.at, moment.order))
    if not cursor.backwards:
        return place, place + limit
    return max(0, place - 1 - limit), max(0, place - 1)
