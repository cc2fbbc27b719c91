"""State of the queues for one tenant, and the workers that serve them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import F, QuerySet
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from activities import intake, selectors
from activities.leases import ALL, DRAINING
from activities.models import WorkerProcess
from agents.api.pausing import Pausable
from agents.models import Agent, AgentConfig
from agents.routing import queue_of
from tenants import clock
from tenants.api.documentation import operation
from tenants.api.etags import Versioned
from tenants.api.serializers import Computed, ResponseSerializer
from tenants.api.views import ListResource, TenantViewSet, describe_resource
from tenants.context import tenant_scope


class WaitingByBandSerializer(serializers.Serializer[Any]):
    urgent = serializers.IntegerField()
    gated = serializers.IntegerField()
    normal = serializers.IntegerField()
    background = serializers.IntegerField()


class BacklogSerializer(serializers.Serializer[Any]):
    """How much work may wait, and what happens beyond that."""

    max_waiting = serializers.IntegerField()
    when_full = serializers.CharField(help_text="reject, drop_oldest or evict_lowest")
    expire_after_seconds = serializers.FloatField(allow_null=True)


class TurnedAwaySerializer(serializers.Serializer[Any]):
    """Total numbers of activities that were refused (429), dropped to make room, and cancelled because they had expired."""

    rejected = serializers.IntegerField()
    shed = serializers.IntegerField()
    expired = serializers.IntegerField()


class QueueSerializer(ResponseSerializer):
    """The queue of a role, as far as it concerns this tenant."""

    role = serializers.CharField()
    queue = Computed(
        str,
        lambda queue: queue_of(queue.role),
        help_text="The name of the queue for `celery -A orchestrator worker -Q`.",
    )
    waiting = WaitingByBandSerializer()
    granted = serializers.IntegerField(help_text="Activities on their way to a worker.")
    running = serializers.IntegerField()
    delayed = serializers.IntegerField(
        help_text="Activities that wait for a time, or for their next attempt."
    )
    oldest_wait_seconds = serializers.FloatField(allow_null=True)
    workers = serializers.IntegerField(
        help_text="Live worker processes that serve the role, for all tenants."
    )
    paused = serializers.BooleanField()
    backlog = BacklogSerializer()
    turned_away = TurnedAwaySerializer()


class WorkerRunSerializer(ResponseSerializer):
    """A current run."""

    id = serializers.UUIDField()
    activity = serializers.UUIDField(source="activity_id")
    agent_role = serializers.CharField(source="activity.agent_role")
    session_id = serializers.CharField()
    started_at = serializers.DateTimeField()


class LoadSerializer(serializers.Serializer[Any]):
    """Load as a share of what the host has, or of what its container may use."""

    cpu = serializers.FloatField()
    memory = serializers.FloatField()


class WorkerSerializer(ResponseSerializer):
    """A live process that runs agents. Workers serve all tenants."""

    id = serializers.UUIDField()
    name = serializers.CharField(help_text="host:pid:id")
    host = serializers.CharField()
    pid = serializers.IntegerField()
    version = serializers.CharField(help_text="The version of its program.")
    roles = serializers.ListField(child=serializers.CharField())
    concurrency = serializers.IntegerField()
    active = serializers.IntegerField(help_text="Current runs of all tenants, at the last heartbeat.")
    utilisation = Computed(
        float,
        lambda worker: round(worker.active / worker.concurrency, 3) if worker.concurrency else 0.0,
        help_text="The share of its concurrency that is in use.",
    )
    runs = serializers.SerializerMethodField(help_text="Current runs of this tenant.")
    taken = serializers.IntegerField(help_text="Number of runs since its start.")
    load = LoadSerializer(allow_null=True, help_text="The load of its host at the last heartbeat.")
    draining = Computed(
        bool,
        lambda worker: bool(worker.closed.get(ALL) == DRAINING),
        help_text="Whether it is shutting down.",
    )
    closed = serializers.DictField(
        child=serializers.CharField(),
        help_text="Why it takes no new work: `*`, which means all its roles, with the reason. Empty while it takes some.",
    )
    started_at = serializers.DateTimeField()
    beat_at = serializers.DateTimeField()
    beat_age_seconds = Computed(
        float, lambda worker: round(max(0.0, (clock.now() - worker.beat_at).total_seconds()), 3)
    )

    @extend_schema_field(WorkerRunSerializer(many=True))
    def get_runs(self, worker: WorkerProcess) -> Any:
        return WorkerRunSerializer(self.context["runs"].get(worker.pk, []), many=True).data


class QueueList(TenantViewSet):
    # The number of granted slots is read from Redis, after the transaction.
    in_one_transaction = False
    serializer_class = QueueSerializer
    queryset = Agent.objects
    ordering = ("role",)
    ordering_fields = ("role",)
    scope = "queues"

    def get_queryset(self) -> QuerySet[Any]:
        return Agent.objects.filter(enabled=True).only("role")

    @operation("The queues, one for each role", answer=QueueSerializer(many=True), refusals=(400,))
    def list(self, request: Request) -> Response:
        with tenant_scope(self.tenant_id):
            page = self.paginate_queryset(self.filter_queryset(self.get_queryset())) or []
            queues = selectors.queues(self.tenant_id, [agent.role for agent in page])
        return self.get_paginated_response(
            QueueSerializer(selectors.with_grants(self.tenant_id, queues), many=True).data
        )


class QueueViewSet(Pausable, Versioned, TenantViewSet):
    """Applies to one queue, for this tenant only. Takes effect within two seconds; current runs end normally."""

    queryset = AgentConfig.objects
    lookup_field = "role"
    scope = "queues"

    def switch(self, *, paused: bool, role: str) -> Mapping[str, Any]:
        if not Agent.objects.filter(role=role).exists():
            raise NotFound
        own = AgentConfig.objects.for_tenant(self.tenant_id)
        known = own.select_for_update().filter(agent_id=role).first()
        self.check_if_match(known.version if known else 0)
        config, _ = own.get_or_create(tenant_id=self.tenant_id, agent_id=role)
        # The version is the ETag of the settings, so a client that read them before the pause notices the change.
        own.filter(pk=config.pk).exclude(paused=paused).update(paused=paused, version=F("version") + 1)
        intake.update_admission_after_commit()
        return {"role": role, "queue": queue_of(role)}


@describe_resource(many="The live workers")
class WorkerList(ListResource):
    serializer_class = WorkerSerializer
    queryset = WorkerProcess.objects
    ordering = ("started_at", "id")
    scope = "queues"

    def get_queryset(self) -> QuerySet[Any]:
        return selectors.live_workers()

    def show(self, rows: Any, *, many: bool = False) -> Any:
        runs = selectors.runs_of_workers(self.tenant_id, rows)
        return WorkerSerializer(rows, many=many, context={"runs": runs}).data
