"""Bulk jobs as the API shows them."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from activities.api.serializers import link_of
from activities.models import BulkItem, BulkJob
from activities.models.bulk import BulkAction, BulkStatus, ItemState
from agents.api.shown import Shown

JOBS = "/api/v1/bulk-jobs/"


class BulkJobSerializer(Shown):
    """One thing that is done to many activities."""

    id = serializers.UUIDField()
    action = serializers.CharField(help_text=f"One of {', '.join(BulkAction.values)}.")
    status = serializers.CharField(help_text=f"One of {', '.join(BulkStatus.values)}.")
    filter = serializers.DictField(help_text="The activities were found by it once, when the job was made.")
    arguments = serializers.DictField()
    total = serializers.IntegerField()
    done = serializers.IntegerField()
    skipped = serializers.IntegerField(help_text="Not in a state in which this can happen.")
    failed = serializers.IntegerField()
    remaining = serializers.SerializerMethodField()
    rate = serializers.SerializerMethodField(help_text="Items per second so far; null before the first.")
    created_by = serializers.CharField()
    cancelled_by = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    link = serializers.SerializerMethodField()

    def get_remaining(self, job: BulkJob) -> int:
        return job.total - job.done - job.skipped - job.failed

    def get_rate(self, job: BulkJob) -> float | None:
        dealt_with = job.total - self.get_remaining(job)
        if not dealt_with:
            return None
        # Until it got on last, not until now: an object that nobody has changed looks the same.
        seconds = (job.updated_at - job.created_at).total_seconds()
        return round(dealt_with / max(seconds, 0.001), 1)

    def get_cancelled_by(self, job: BulkJob) -> str | None:
        return job.cancelled_by or None

    def get_link(self, job: BulkJob) -> str:
        return f"{JOBS}{job.pk}/"


class BulkErrorSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()


class BulkItemSerializer(Shown):
    """What became of one activity."""

    activity = serializers.UUIDField(source="activity_id")
    state = serializers.CharField(help_text=f"One of {', '.join(ItemState.values)}.")
    error = BulkErrorSerializer(allow_null=True, help_text="Why it was skipped or failed.")
    ended_at = serializers.DateTimeField(allow_null=True)
    link = serializers.SerializerMethodField(help_text="Of the activity.")

    def get_link(self, item: BulkItem) -> str:
        return link_of(item.activity_id)


class SampleSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    status = serializers.CharField()
    link = serializers.CharField()


class BulkPreviewSerializer(serializers.Serializer[Any]):
    """What a filter finds now. Send `count` as `expected_count` to do it."""

    dry_run = serializers.BooleanField()
    count = serializers.IntegerField()
    sample = SampleSerializer(many=True, help_text="The newest of them.")
