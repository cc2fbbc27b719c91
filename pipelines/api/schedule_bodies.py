"""Schedules in requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from activities.api.priorities import PriorityField
from agents.api.settings_bodies import RetrySerializer
from agents.api.shown import Shown
from agents.api.strict import OPTIONAL, Flag, Json, Member, Moment, OneOf, StrictSerializer, Text, Whole
from pipelines.api.serializers import RUNS
from pipelines.models import Schedule, ScheduleExecution, ScheduleJob
from pipelines.models.execution import ExecutionStatus
from pipelines.models.firing import FiringState
from pipelines.models.schedule import AfterOnce, Overlap, Repeat
from pipelines.models.schedule_job import JobState
from pipelines.schedules import given
from pipelines.schedules.forecast import Forecast

SCHEDULES = "/api/v1/schedules/"

CATCH_UP = {
    "oneOf": [
        {"type": "string", "enum": ["none", "latest"]},
        {"type": "object", "properties": {"up_to": {"type": "integer"}}, "required": ["up_to"]},
    ]
}


@extend_schema_field(CATCH_UP)
class CatchUpField(Json):
    """`none`, `latest` or `{up_to: n}`."""


class ScheduleBodySerializer(StrictSerializer):
    """A schedule. What is left out, or null, has its default. Bodies are read by `pipelines.schedules.checking`."""

    name = Text(max_length=200, help_text="Unique among the tenant's schedules.")
    description = Text(allow_blank=True, **OPTIONAL)
    repeat = OneOf(choices=Repeat.values)
    cron = Text(help_text="Minute, hour, day of the month, month, day of the week.", **OPTIONAL)
    interval_ms = Whole(help_text="Instead of cron: milliseconds between two runs.", **OPTIONAL)
    timezone = Text(help_text="Default: the platform's setting `timezone`.", **OPTIONAL)
    start_at = Moment(help_text="When it happens once; a bound when it repeats by cron.", **OPTIONAL)
    end_at = Moment(**OPTIONAL)
    dst_gap = OneOf(choices=["shift", "skip"], **OPTIONAL)
    dst_fold = OneOf(choices=["first", "second", "both"], **OPTIONAL)
    jitter_seconds = Whole(**OPTIONAL)
    target_type = OneOf(choices=["agent", "pipeline"])
    agent_role = Text(**OPTIONAL)
    pipeline = Text(help_text="The key of a pipeline.", **OPTIONAL)
    params = Member(help_text="A value that is a data source string is expanded into jobs.", **OPTIONAL)
    retry = RetrySerializer(**OPTIONAL)
    timeout_seconds = Whole(min_value=1, max_value=86_400, **OPTIONAL)
    priority = PriorityField(**OPTIONAL)
    enabled = Flag(help_text="Default: true.", **OPTIONAL)
    catch_up = CatchUpField(help_text="Default: latest.", **OPTIONAL)
    overlap = OneOf(choices=Overlap.values, help_text="Default: skip.", **OPTIONAL)
    after_once = OneOf(choices=AfterOnce.values, help_text="Default: disable.", **OPTIONAL)


class ScheduleSerializer(serializers.Serializer[Any]):
    """When an agent or a pipeline is run, with which parameters."""

    id = serializers.UUIDField()
    name = serializers.CharField()
    description = serializers.CharField()
    repeat = serializers.CharField(help_text="once or repeating")
    cron = serializers.CharField(allow_null=True)
    interval_ms = serializers.IntegerField(allow_null=True)
    timezone = serializers.CharField()
    start_at = serializers.DateTimeField(allow_null=True)
    end_at = serializers.DateTimeField(allow_null=True)
    dst_gap = serializers.CharField()
    dst_fold = serializers.CharField()
    jitter_seconds = serializers.IntegerField()
    target_type = serializers.CharField()
    agent_role = serializers.CharField(allow_null=True)
    pipeline = serializers.CharField(allow_null=True)
    params = serializers.DictField()
    retry = serializers.DictField()
    timeout_seconds = serializers.IntegerField(allow_null=True)
    priority = serializers.IntegerField()
    enabled = serializers.BooleanField()
    catch_up = CatchUpField()
    overlap = serializers.CharField()
    after_once = serializers.CharField()
    next_run_at = serializers.DateTimeField(
        allow_null=True, help_text="With its jitter. Null: it is switched off, or has no further time."
    )
    last_run_at = serializers.DateTimeField(allow_null=True)
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    version = serializers.IntegerField(help_text="Raised by every change; the ETag.")
    link = serializers.CharField()

    def to_representation(self, instance: Schedule) -> dict[str, Any]:
        columns = ("next_run_at", "last_run_at", "created_by", "created_at", "updated_at", "version")
        return {
            "id": instance.pk,
            **given.members_of(instance),
            **{name: getattr(instance, name) for name in columns},
            "link": f"{SCHEDULES}{instance.pk}/",
        }


class ForecastErrorSerializer(serializers.Serializer[Any]):
    path = serializers.CharField()
    message = serializers.CharField()


class ForecastSerializer(serializers.Serializer[Any]):
    """What would happen. Times are nominal: a schedule's jitter comes on top."""

    fires_at = serializers.ListField(child=serializers.DateTimeField(), help_text="In UTC.")
    fires_at_local = serializers.ListField(
        child=serializers.CharField(),
        help_text="The same on the clocks of the schedule's zone, with their offset.",
    )
    timezone = serializers.CharField()
    in_words = serializers.CharField()
    jobs = serializers.IntegerField(help_text="That one firing would make, were it now.")
    batches = serializers.IntegerField()
    ends_after_seconds = serializers.FloatField(help_text="When the last batch starts, after the first.")
    sample = serializers.ListField(child=serializers.DictField(), help_text="Parameters of the first jobs.")
    errors = ForecastErrorSerializer(
        many=True, help_text="Why this could not be saved, or which jobs their agent would refuse."
    )  # type: ignore[assignment]  # a field, not the attribute
    notes = serializers.ListField(child=serializers.CharField(), help_text="What else there is to know.")

    def to_representation(self, instance: Forecast) -> dict[str, Any]:
        zone = ZoneInfo(instance.timezone)
        return {
            "fires_at": instance.fires_at,
            "fires_at_local": [local(moment, zone) for moment in instance.fires_at],
            "timezone": instance.timezone,
            "in_words": instance.in_words,
            "jobs": instance.jobs,
            "batches": instance.batches,
            "ends_after_seconds": instance.ends_after.total_seconds(),
            "sample": instance.sample,
            "errors": instance.errors,
            "notes": instance.notes,
        }


def local(moment: datetime, zone: ZoneInfo) -> str:
    """As the clocks of the zone show it, to the second: 2027-03-14T03:00:00-04:00."""
    return moment.astimezone(zone).isoformat(timespec="seconds")


class ExecutionSerializer(Shown):
    """One firing at work."""

    id = serializers.UUIDField()
    schedule = serializers.UUIDField(source="schedule_id", allow_null=True)
    schedule_name = serializers.CharField(help_text="Kept when the schedule is deleted.")
    nominal_at = serializers.DateTimeField(allow_null=True, help_text="Null when it was started by hand.")
    status = serializers.CharField(help_text=f"One of {', '.join(ExecutionStatus.values)}.")
    jobs_created = serializers.IntegerField()
    jobs_enqueued = serializers.IntegerField()
    jobs_failed = serializers.IntegerField()
    errors = serializers.ListField(child=serializers.DictField())  # type: ignore[assignment]  # a field, not the attribute
    metadata = serializers.DictField(help_text="Figures on the expansion.")
    created_by = serializers.CharField()
    started_at = serializers.DateTimeField()
    expanded_at = serializers.DateTimeField(allow_null=True, help_text="When the last job was recorded.")
    finished_at = serializers.DateTimeField(allow_null=True)
    jobs = serializers.SerializerMethodField()
    link = serializers.SerializerMethodField()

    def get_jobs(self, execution: ScheduleExecution) -> str:
        return f"{_link_of(execution)}jobs/"

    def get_link(self, execution: ScheduleExecution) -> str:
        return _link_of(execution)


def _link_of(execution: ScheduleExecution) -> str:
    return f"{SCHEDULES}{execution.schedule_id}/executions/{execution.pk}/"


class ScheduleJobSerializer(Shown):
    """One set of parameters of an execution, and what does it."""

    id = serializers.UUIDField()
    ordinal = serializers.IntegerField()
    batch = serializers.IntegerField()
    due_at = serializers.DateTimeField()
    params = serializers.DictField()
    state = serializers.CharField(help_text=f"One of {', '.join(JobState.values)}.")
    activity = serializers.UUIDField(source="activity_id", allow_null=True)
    pipeline_run = serializers.UUIDField(source="pipeline_run_id", allow_null=True)
    error = serializers.DictField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    link = serializers.SerializerMethodField()

    def get_link(self, job: ScheduleJob) -> str | None:
        if job.activity_id:
            return f"/api/v1/activities/{job.activity_id}/"
        return f"{RUNS}{job.pipeline_run_id}/" if job.pipeline_run_id else None


class FiringSerializer(Shown):
    """A nominal time, or a row of skipped ones, and what became of it."""

    nominal_at = serializers.DateTimeField()
    last_at = serializers.DateTimeField(allow_null=True, help_text="The last of a row of skipped times.")
    count = serializers.IntegerField(help_text="How many times this record stands for.")
    state = serializers.CharField(help_text=f"One of {', '.join(FiringState.values)}.")
    reason = serializers.CharField(help_text="Why it was skipped.")
    at = serializers.DateTimeField(help_text="When this was decided.")
