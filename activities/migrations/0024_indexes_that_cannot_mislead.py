import uuid

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Indexes that a statement which looks a row up by its key cannot be led to read from end to end."""

    # Beside work that goes on: no table is locked while its index is made. What was made of it before a failure is not made again.
    atomic = False
    dependencies = [("activities", "0023_last_heartbeat"), ("tenants", "0013_events_by_key")]

    operations = [
        AddIndexConcurrently(
            model_name="activity",
            index=models.Index(
                condition=models.Q(("tenant__gt", uuid.UUID("00000000-0000-0000-0000-000000000000"))),
                fields=["tenant", "-created_at", "-id"],
                name="activities_listed",
            ),
        ),
        AddIndexConcurrently(
            model_name="activity",
            index=models.Index(
                condition=models.Q(("status", ""), _negated=True),
                fields=["tenant", "status", "-created_at"],
                name="activities_listed_by_status",
            ),
        ),
        AddIndexConcurrently(
            model_name="activityrun",
            index=models.Index(
                condition=models.Q(("status", "running"), ("worker_id__isnull", False)),
                fields=["worker_id"],
                name="runs_of_worker",
            ),
        ),
        AddIndexConcurrently(
            model_name="wake",
            index=models.Index(
                condition=models.Q(("due_at__isnull", True), ("state", "pending")),
                fields=["id"],
                name="wakes_ready",
            ),
        ),
        RemoveIndexConcurrently(model_name="activity", name="activity_newest"),
        RemoveIndexConcurrently(model_name="activity", name="activity_by_status"),
        RemoveIndexConcurrently(model_name="activityrun", name="live_runs_of_worker"),
        RemoveIndexConcurrently(model_name="wake", name="wakes_pending"),
    ]
