"""Runs of activities, worker processes, tool calls and wakes."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from activities import states
from tenants.identifiers import uuid7
from tenants.models import TenantPart, index, part_of, unique


class ActivityRun(TenantPart):
    """One attempt of an agent. Its results count only while `fence` equals that of the activity."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = part_of("activities.Activity", "runs")
    status = models.CharField(
        max_length=12,
        choices=[(s.value, s.value) for s in states.RunStatus],
        default=states.RunStatus.RUNNING,
    )
    fence = models.IntegerField()
    attempt = models.PositiveSmallIntegerField()
    wake_reason = models.CharField(max_length=20)
    own_wake = models.JSONField(
        null=True,
        editable=False,
        help_text="Of a run that began in the statement that created its activity, so that no wake was recorded: what the wake would "
        "say besides `wake_reason`, as `payload` and `provenance`. Its id is the activity's.",
    )
    grant = models.CharField(max_length=40, help_text="The admission grant whose slot this run holds.")
    worker_id = models.UUIDField(
        null=True,
        help_text="The process that waits for the agent. Empty after the agent has accepted the work.",
    )
    accepted_at = models.DateTimeField(null=True, help_text="When an HTTP agent answered 202.")
    parked = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether it waits for a batch. It holds no slots while it waits.",
    )
    beats = models.IntegerField(
        default=0, help_text="Number of heartbeats, if the agent has accepted the run."
    )
    beat_at = models.DateTimeField(
        null=True,
        help_text="When the last heartbeat arrived; only for people. Recovery compares only `beats`.",
    )
    agent_version = models.CharField(max_length=64, blank=True, default="")
    timeout_seconds = models.PositiveIntegerField()
    session_id = models.CharField(max_length=200, blank=True, default="")
    usage = models.JSONField(null=True)
    progress = models.JSONField(null=True)
    ended_by_tool = models.CharField(
        max_length=32,
        blank=True,
        db_default="",
        help_text="The tool with which the agent suspended its work. Such a run has no output.",
    )
    error = models.JSONField(null=True)
    started_at = models.DateTimeField(db_default=Now())
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-started_at",)
        constraints = (
            unique("one_live_run", "activity", status="running"),
            unique("run_once_per_fence", "activity", "fence"),
        )
        indexes = (index("runs_of_worker", "worker_id", status="running", worker_id__isnull=False),)

    def __str__(self) -> str:
        return f"attempt {self.attempt}"

    @property
    def deadline(self) -> datetime:
        """The end of its timeout, counted from the acceptance if its agent has accepted the work."""
        return (self.accepted_at or self.started_at) + timedelta(seconds=self.timeout_seconds)


class WorkerProcess(models.Model):
    """A process that runs agents. It is alive while its counter changes; recovery measures that with its own clock."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    host = models.CharField(max_length=200)
    boot = models.CharField(
        max_length=120,
        help_text="Identifies the start of the machine and the process namespace, in which `pid` is valid.",
    )
    pid = models.IntegerField()
    pid_started = models.BigIntegerField(
        help_text="Start time of the process in the kernel, so that a reused pid is recognized."
    )
    version = models.CharField(
        max_length=40, blank=True, default="", db_default="", help_text="The version of its program."
    )
    roles = ArrayField(models.CharField(max_length=63), help_text="Agent roles whose queues it consumes.")
    concurrency = models.PositiveIntegerField()
    counter = models.BigIntegerField(default=0)
    taken = models.BigIntegerField(default=0, help_text="Runs claimed since its start.")
    active = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Current runs at the last heartbeat."
    )
    load = models.JSONField(
        null=True,
        help_text="Load of the processor and the memory of its host at the last heartbeat, as shares.",
    )
    closed = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="Why it takes no new work, by role; `*` means all roles. Its seats are withdrawn from admission.",
    )
    started_at = models.DateTimeField(db_default=Now())
    beat_at = models.DateTimeField(
        db_default=Now(), help_text="Only for people. Recovery never compares it with a clock."
    )
    outage_at = models.DateTimeField(
        null=True,
        help_text="The end of the outage of PostgreSQL that it was affected by. The runs that it lost then do not count as stalls.",
    )
    ended_at = models.DateTimeField(null=True)
    end_reason = models.CharField(max_length=20, blank=True, default="")

    class Meta:
        verbose_name_plural = "worker processes"
        indexes = (index("live_workers", "id", ended_at__isnull=True),)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    @property
    def name(self) -> str:
        """A unique name: host, pid and id."""
        return f"{self.host}:{self.pid}:{self.pk}"


class ToolCall(TenantPart):
    """A tool call of an agent during a run, with its answer. A repeated call is recognised by its digest and gets the same answer."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = part_of("activities.Activity", "tool_calls")
    run_id = models.UUIDField()
    tool = models.CharField(max_length=32)
    digest = models.CharField(
        max_length=64, help_text="A digest of the tool and the Idempotency-Key or, without a key, the body."
    )
    arguments = models.JSONField(default=dict)
    answer = models.JSONField(default=dict)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("at", "pk")
        constraints = (unique("one_effect_per_call", "run_id", "digest"),)
        indexes = (index("tool_calls_of_activity", "activity", "at"),)

    def __str__(self) -> str:
        return self.tool.replace("_", " ")


class Wake(TenantPart):
    """A durable reason to run an activity, in the engine's outbox. A pending wake is never lost; a consumed one never runs again."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    activity = part_of("activities.Activity", "wakes")
    reason = models.CharField(max_length=20, choices=[(r.value, r.value) for r in states.WakeReason])
    cause = models.CharField(max_length=12, default="wake", help_text="wake, retry, stall, replay, session")
    payload = models.JSONField(default=dict)
    fingerprint = models.CharField(
        max_length=64, default="", help_text="Pending wakes with equal fingerprints are merged."
    )
    state = models.CharField(
        max_length=10,
        choices=[(s.value, s.value) for s in states.WakeState],
        default=states.WakeState.PENDING,
    )
    run_id = models.UUIDField(null=True)
    due_at = models.DateTimeField(
        null=True, help_text="The wake is not offered before this time. The promoter clears it."
    )
    merged = models.PositiveIntegerField(
        default=0, help_text="The number of equal wakes that were merged into this one."
    )
    provenance = models.JSONField(
        null=True, editable=False, help_text="The request that caused it, see tenants.request_context."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints = (unique("equal_wakes_merge", "activity", "reason", "fingerprint", state="pending"),)
        indexes = (
            index("wakes_due", "due_at", state="pending", due_at__isnull=False),
            # For wakes that may run at once. Queries for the pending wakes of one activity must use the index by activity instead.
            index("wakes_ready", "id", state="pending", due_at__isnull=True),
            index("wakes_of_activity", "activity", "state"),
        )

    def __str__(self) -> str:
        return self.reason.replace("_", " ")


def own_wake_of(run: ActivityRun) -> Wake | None:
    """Return the wake of a run that has one of its own, as a row that was never stored."""
    if run.own_wake is None:
        return None
    return Wake(
        id=run.activity_id,
        tenant_id=run.tenant_id,
        activity_id=run.activity_id,
        reason=run.wake_reason,
        payload=run.own_wake["payload"],
        state=states.WakeState.TAKEN,
        run_id=run.pk,
        created_at=run.started_at,
    )


def is_carried(tenant_id: UUID) -> Exists:
    """Return a condition for queries of wakes: the run that took the wake is still running. Its end decides what happens to the wake."""
    runs = ActivityRun.objects.for_tenant(tenant_id).filter(status=states.RunStatus.RUNNING)
    return Exists(runs.filter(pk=OuterRef("run_id")))
