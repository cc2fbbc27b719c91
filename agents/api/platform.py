"""The settings of the whole platform, which platform admins can change at run time, and its model providers."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from agents import configuration, scheduler_settings
from agents.governor import overview
from agents.models import Agent, PlatformConfig
from agents.scheduler_settings import BACKOFFS, CHANNELS
from tenants.api.documentation import change, operation
from tenants.api.etags import Versioned
from tenants.api.filters import refuse_unknown
from tenants.api.pagination import CursorPagination
from tenants.api.permissions import PlatformPermission
from tenants.api.serializers import ResponseSerializer
from tenants.api.views import TenantView, TenantViewSet
from tenants.models import Role

#: Members of the answer that are not settings. A PUT ignores them, so that an answer can be sent back.
READ_ONLY = ("own", "in_force", "version", "updated_at", "updated_by")


class RetryConfigSerializer(serializers.Serializer[Any]):
    max_retries = serializers.IntegerField(required=False)
    backoff = serializers.CharField(required=False, help_text=f"One of {', '.join(BACKOFFS)}.")
    delay = serializers.IntegerField(required=False, help_text="ms")


class ConnectionPoolSerializer(serializers.Serializer[Any]):
    max_sockets = serializers.IntegerField(required=False)
    keep_alive = serializers.BooleanField(required=False)


class HttpClientSerializer(serializers.Serializer[Any]):
    timeout = serializers.IntegerField(required=False, help_text="ms")
    max_concurrent_requests = serializers.IntegerField(required=False)
    retry_config = RetryConfigSerializer(required=False)
    connection_pool = ConnectionPoolSerializer(required=False)


class BatchProcessingSerializer(serializers.Serializer[Any]):
    batch_size = serializers.IntegerField(required=False)
    stagger_delay = serializers.IntegerField(required=False, help_text="ms")


class MonitoringSerializer(serializers.Serializer[Any]):
    enabled = serializers.BooleanField(required=False)
    notify_on_failure = serializers.BooleanField(required=False)
    notification_channels = serializers.ListField(
        child=serializers.CharField(), required=False, help_text=f"Of {', '.join(CHANNELS)}."
    )


class SchedulerSettingsSerializer(serializers.Serializer[Any]):
    """The settings of scheduling. Put, what is left out has its default; the specification's spelling (`checkInterval`) is understood."""

    enabled = serializers.BooleanField(required=False)
    timezone = serializers.CharField(required=False)
    check_interval = serializers.IntegerField(required=False, help_text="ms")
    http_client = HttpClientSerializer(required=False)
    default_batch_processing = BatchProcessingSerializer(required=False)
    monitoring = MonitoringSerializer(required=False)


class SchedulerSettingsShownSerializer(SchedulerSettingsSerializer):
    """The settings. `own` names what was set; all else are defaults, but for what `in_force` says otherwise."""

    own = serializers.ListField(child=serializers.CharField())
    in_force = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="By path, what holds for agents that say nothing themselves while it is not set: the defaults of all work go before.",
    )
    version = serializers.IntegerField(
        help_text="Raised by every change; the ETag. 0 while nothing was ever set."
    )
    updated_at = serializers.DateTimeField(allow_null=True)
    updated_by = serializers.CharField()


class SchedulerSettingsView(Versioned, TenantView):
    queryset = PlatformConfig.objects
    permission_classes = (PlatformPermission,)
    pagination_class = None
    scope = "agents"
    required_role: ClassVar[dict[str, Role]] = {"put": Role.ADMIN}

    @operation("The settings of scheduling in force", answer=SchedulerSettingsShownSerializer)
    def get(self, request: Request) -> Response:
        return Response(_render_settings(scheduler_settings.row()))

    @change(
        "Replace the settings of scheduling",
        SchedulerSettingsSerializer,
        SchedulerSettingsShownSerializer,
        refusals=(),
    )
    def put(self, request: Request) -> Response:
        """In force within two seconds in every process. Schedules and pipelines have addresses of their own."""
        expected = scheduler_settings.row().version
        self.check_if_match(expected)
        is_conditional = "If-Match" in request.headers
        body: Any = request.data
        members = {name: value for name, value in body.items() if name not in READ_ONLY}
        saved = scheduler_settings.save(
            members, actor=self.principal.actor, expected_version=expected if is_conditional else None
        )
        return Response(_render_settings(saved))


def _render_settings(row: PlatformConfig) -> dict[str, Any]:
    current = scheduler_settings.settings_of(row.value)
    return {
        **scheduler_settings.as_tree(current),
        "own": [key.path for key in scheduler_settings.KEYS if key.attribute in current.explicit],
        "in_force": configuration.in_force(current),
        "version": row.version,
        "updated_at": row.updated_at if row.version else None,
        "updated_by": row.updated_by,
    }


# The state of the model providers: for a tenant those that its agents call, for the platform all of them.


class ProviderSerializer(ResponseSerializer):
    """A model provider under one credential, as all workers together see it."""

    adapter = serializers.CharField()
    place = serializers.CharField(help_text="Its host and port.")
    roles = serializers.ListField(
        child=serializers.CharField(), help_text="The caller's roles that call it; for the platform, empty."
    )
    state = serializers.CharField(
        help_text="ready, retry_after, breaker_open, or unknown while Redis does not answer."
    )
    retry_seconds = serializers.FloatField(
        help_text="Until it may be called again after it asked to be left alone."
    )
    breaker_seconds = serializers.FloatField(help_text="Until a call may probe it.")
    under_way = serializers.IntegerField(
        allow_null=True, help_text="null: the credential is shared with others."
    )
    slots = serializers.IntegerField(allow_null=True, help_text="How many calls may be under way at once.")
    used = serializers.DictField(
        child=serializers.IntegerField(),
        allow_null=True,
        help_text="Requests and tokens of the last minute, tokens of the last day.",
    )
    limits = serializers.DictField(child=serializers.IntegerField(allow_null=True), allow_null=True)
    counts = serializers.DictField(
        child=serializers.IntegerField(),
        allow_null=True,
        help_text="Calls by outcome: ok, limited (429), fault, other; breaker: opened.",
    )


class ProviderList(TenantViewSet):
    # Redis is read outside the transaction.
    in_one_transaction = False
    serializer_class = ProviderSerializer
    queryset = Agent.objects
    scope = "agents"

    @operation(
        "The model providers that agents call, and how they stand",
        answer=ProviderSerializer(many=True),
        refusals=(400,),
    )
    def list(self, request: Request) -> Response:
        """All in one page: there are a handful."""
        refuse_unknown(request, self)
        CursorPagination().refuse_bad_paging(request)
        platform = self.principal.is_platform_admin
        rows = overview.of_platform() if platform else overview.of_tenant(self.tenant_id)
        return Response({"next": None, "previous": None, "results": ProviderSerializer(rows, many=True).data})
