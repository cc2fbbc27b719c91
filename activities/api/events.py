"""Events of the tenant, as a stream or in pages."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from tenants.api import event_stream
from tenants.api.bodies import JSONRenderer
from tenants.api.documentation import operation
from tenants.api.event_stream import EventStreamRenderer
from tenants.api.filters import LARGEST, parameter_errors, parse_whole_number, refuse
from tenants.api.pagination import LIMIT
from tenants.api.problems import FieldError
from tenants.api.views import TenantView
from tenants.events import log
from tenants.events.log import EventFilter, render_event
from tenants.events.stream import Subscriber
from tenants.models.events import ANNOUNCED, KINDS

AFTER = "after"
LAST_SEEN = "Last-Event-ID"
MOST_EVENTS, USUAL_EVENTS = 1_000, 100


class EventSerializer(serializers.Serializer[Any]):
    """An event. It contains ids and statuses; read the objects themselves for details."""

    id = serializers.IntegerField(
        help_text="The number of the event: 1, 2, 3 and so on for each tenant. Use it as `after` or `Last-Event-ID` to continue."
    )
    kind = serializers.ChoiceField(choices=[(kind, kind) for kind in KINDS])
    at = serializers.DateTimeField()
    activity = serializers.UUIDField(allow_null=True)
    pipeline_run = serializers.UUIDField(allow_null=True)
    data = serializers.DictField()  # type: ignore[assignment]  # a field, not the attribute


class EventPageSerializer(serializers.Serializer[Any]):
    """Events, in order."""

    next = serializers.URLField(allow_null=True, help_text="The next page, if there is one yet.")
    previous = serializers.URLField(
        allow_null=True, help_text="Always null, because the log is only read forwards."
    )
    results = EventSerializer(many=True)
    cursor = serializers.IntegerField(help_text="The value of `after` to continue with, now or later.")


def _query(name: str, about: str, kind: Any, **more: Any) -> OpenApiParameter:
    return OpenApiParameter(name, kind, "query", description=about, **more)


_LIMIT = {"type": "integer", "minimum": 1, "default": USUAL_EVENTS}

PARAMETERS = (
    _query(
        "kind",
        f"Only these kinds; may be repeated. Only streams contain {', '.join(ANNOUNCED)}.",
        OpenApiTypes.STR,
        enum=(*KINDS, *ANNOUNCED),
        many=True,
    ),
    _query("activity", "Only events of this activity.", OpenApiTypes.UUID),
    _query("pipeline_run", "Only events of this pipeline run.", OpenApiTypes.UUID),
    _query(
        AFTER, "Continue after the event with this id.", {"type": "integer", "minimum": 0, "maximum": LARGEST}
    ),
    _query(LIMIT, f"Events per page, at most {MOST_EVENTS}; larger values are reduced.", _LIMIT),
    OpenApiParameter(
        LAST_SEEN,
        OpenApiTypes.STR,
        "header",
        description="The same as `after`, in the form in which browsers send it.",
    ),
)


class Events(TenantView):
    """Server-sent events, or with `Accept: application/json` a page of them."""

    in_one_transaction = False  # a stream has none
    renderer_classes = (EventStreamRenderer, JSONRenderer)
    pagination_class = None
    query_parameters = ("activity", "pipeline_run", AFTER, LIMIT)
    scope = "events"
    serializer_class = EventPageSerializer
    several: ClassVar[tuple[str, ...]] = ("kind",)
    http_method_names = ["get", "options"]  # a HEAD request for a stream is useless

    @operation(
        "The events of the tenant, as a stream or in pages",
        answers={
            (200, "application/json"): EventPageSerializer,
            (200, event_stream.MEDIA_TYPE): OpenApiTypes.STR,
        },
        refusals=(400, 406, 410),
        notes={
            410: "The events after this id are no longer stored; `oldest` and `last` say which events are."
        },
        parameters=PARAMETERS,
    )
    def get(self, request: Request) -> Any:
        """A stream continues until the client disconnects, or until its token is revoked or changed. Without `after` or `Last-Event-ID`, it
        begins with the next event. If the events after the requested id are no longer stored, it sends an event `reset`, and continues with
        the next event.

        An event `run_log` announces new log lines of a run, at most twice a second for each run. It has no id and is not stored, so read
        the log of the run after the last number that you have, also after every new connection. A stream of one `pipeline_run` contains
        none.

        Without `after`, a page begins with the oldest event that is stored.
        """
        event_filter, after, limit = self._read(request)
        if _is_page(request):
            return self._page(request, event_filter, after, limit)
        return self._stream(request, event_filter, after)

    def _page(self, request: Request, event_filter: EventFilter, after: int | None, limit: int) -> Response:
        page = log.page(self.tenant_id, after, limit, event_filter)
        following = replace_query_param(request.build_absolute_uri(), AFTER, page.cursor)
        return Response(
            {
                "next": str(following) if page.more else None,
                "previous": None,
                "results": [render_event(event) for event in page.events],
                "cursor": page.cursor,
            }
        )

    def _stream(self, request: Request, event_filter: EventFilter, after: int | None) -> Any:
        session = getattr(request._request, "session", None)
        key = session.session_key if session and self.principal.user_id else None
        return event_stream.follow(request.META, Subscriber(self.principal, key), event_filter, after)

    def _read(self, request: Request) -> tuple[EventFilter, int | None, int]:
        kinds = request.query_params.getlist("kind")
        errors = parameter_errors(request, self, several=set(self.several))
        errors += [
            ("kind", f"{kind[:50]!r} is not a kind of event")
            for kind in kinds
            if kind not in (*KINDS, *ANNOUNCED)
        ]
        ids = {
            name: _parse_uuid(request.query_params.get(name), name, errors)
            for name in ("activity", "pipeline_run")
        }
        after = parse_whole_number(request.query_params.get(AFTER), AFTER, errors)
        last_seen = request.headers.get(LAST_SEEN)
        # A browser that reconnects repeats the address of its stream, so its header is newer. The address of a next page is newer.
        if last_seen and (after is None or not _is_page(request)):
            after = parse_whole_number(last_seen, LAST_SEEN, errors)
        limit = parse_whole_number(request.query_params.get(LIMIT), LIMIT, errors, least=1)
        refuse(errors)
        return EventFilter(frozenset(kinds), **ids), after, min(limit or USUAL_EVENTS, MOST_EVENTS)


def _is_page(request: Request) -> bool:
    return bool(request.accepted_renderer.format == JSONRenderer.format)


def _parse_uuid(text: str | None, name: str, errors: list[FieldError]) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        errors.append((name, "must be a UUID"))
        return None
