"""The settings of the whole platform, which platform admins can change at run time, and its model providers."""

from __future__ import annotations

from collections.abc import Mapping
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
from tenants.api.filters import parameter_errors, refuse
from tenants.api.pagination import CURSOR, CursorPagination
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
        child=serializers.CharField(), required=False, help_text=f"Any of {', '.join(CHANNELS)}."
    )


class SchedulerSettingsSerializer(serializers.Serializer[Any]):
    """The settings of scheduling. A PUT resets omitted members to their defaults. Names in camel case (`checkInterval`) are accepted,
    too."""

    enabled = serializers.BooleanField(required=False)
    timezone = serializers.CharField(required=False)
    check_interval = serializers.IntegerField(required=False, help_text="ms")
    http_client = HttpClientSerializer(required=False)
    default_batch_processing = BatchProcessingSerializer(required=False)
    monitoring = MonitoringSerializer(required=False)


class SchedulerSettingsShownSerializer(SchedulerSettingsSerializer):
    """The settings of scheduling. `own` lists those that were set; the others are defaults, unless `in_force` contains another value."""

    own = serializers.ListField(child=serializers.CharField())
    in_force = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="The effective values, by path, of settings that have another default while they are not set. They "
        "apply to agents that set no value themselves.",
    )
    version = serializers.IntegerField(
        help_text="Increases with every change; the ETag begins with it. 0 if nothing was ever set."
    )
    updated_at = serializers.DateTimeField(allow_null=True)
    updated_by = serializers.CharField()


class SchedulerSettingsView(Versioned, TenantView):
    queryset = PlatformConfig.objects
    permission_classes = (PlatformPermission,)
    scope = "agents"
    required_role: ClassVar[dict[str, Role]] = {"put": Role.ADMIN}

    @operation("The settings of scheduling", answer=SchedulerSettingsShownSerializer)
    def get(self, request: Request) -> Response:
        return Response(_render_settings(scheduler_settings.row()))

    @change(
        "Replace the settings of scheduling",
        SchedulerSettingsSerializer,
        SchedulerSettingsShownSerializer,
        refusals=(),
    )
    def put(self, request: Request) -> Response:
        """Takes effect within two seconds in every process. Schedules and pipelines are changed at their own addresses."""
        expected = scheduler_settings.row().version
        self.check_if_match(expected)
        is_conditional = "If-Match" in request.headers
        body: Any = request.data
        members = {name: value for name, value in body.items() if name not in READ_ONLY}
        if isinstance(own := body.get("own"), list):
            # Of what a GET has returned, unchanged defaults stay defaults.
            shown = scheduler_settings.as_tree(scheduler_settings.settings_of(scheduler_settings.row().value))
            for key in scheduler_settings.KEYS:
                value = scheduler_settings.member(members, key.parts)
                if key.path not in own and value == scheduler_settings.member(shown, key.parts):
                    scheduler_settings.put(members, key.parts, None)
        saved = scheduler_settings.save(
            members, actor=self.principal.actor, expected_version=expected if is_conditional else None
        )
        return Response(_render_settings(saved))

    def audited_state(self) -> Mapping[str, Any]:
        return _render_settings(scheduler_settings.row())


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
    """The state of a model provider under one credential, for all workers together."""

    adapter = serializers.CharField()
    place = serializers.CharField(help_text="The host and port of the provider.")
    roles = serializers.ListField(
        child=serializers.CharField(), help_text="The tenant's roles that call it; empty for platform admins."
    )
    state = serializers.CharField(
        help_text="ready, retry_after, breaker_open, or unknown (Redis does not answer)."
    )
    retry_seconds = serializers.FloatField(
        help_text="Seconds until it may be called again, if the provider has asked for a pause."
    )
    breaker_seconds = serializers.FloatField(
        help_text="Seconds until one call may test it again, if the breaker is open."
    )
    under_way = serializers.IntegerField(
        allow_null=True,
        help_text="Number of current calls. Null if the credential is shared with other tenants.",
    )
    slots = serializers.IntegerField(allow_null=True, help_text="How many calls may run at once.")
    used = serializers.DictField(
        child=serializers.IntegerField(),
        allow_null=True,
        help_text="Requests and tokens in the last minute, and tokens in the last day.",
    )
    limits = serializers.DictField(child=serializers.IntegerField(allow_null=True), allow_null=True)
    counts = serializers.DictField(
        child=serializers.IntegerField(),
        allow_null=True,
        help_text="Number of calls by outcome: ok, limited (429), fault, other. `opened` counts how often the breaker has opened.",
    )


class ProviderList(TenantViewSet):
    # Redis is read outside the transaction.
    in_one_transaction = False
    serializer_class = ProviderSerializer
    queryset = Agent.objects
    scope = "agents"

    @operation(
        "The model providers that agents call, and their state",
        answer=ProviderSerializer(many=True),
        refusals=(400,),
    )
    def list(self, request: Request) -> Response:
        """All are on one page, because there are only a few."""
        errors = [*parameter_errors(request, self), *CursorPagination().errors_of(request)]
        if CURSOR in request.query_params:
            errors.insert(0, (CURSOR, "is not supported: this list has one page"))
        refuse(errors)
        platform = self.principal.is_platform_admin
        rows = overview.of_platform() if platform else overview.of_tenant(self.tenant_id)
        return Response({"next": None, "previous": None, "results": ProviderSerializer(rows, many=True).data})
