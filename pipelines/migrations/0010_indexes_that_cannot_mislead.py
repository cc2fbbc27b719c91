import uuid

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Indexes that a statement which looks a row up by its key cannot be led to read from end to end."""

    # Beside work that goes on: no table is locked while its index is made. What was made of it before a failure is not made again.
    atomic = False
    dependencies = [("pipelines", "0009_steps_without_room"), ("tenants", "0013_events_by_key")]

    operations = [
        AddIndexConcurrently(
            model_name="pipelinerun",
            index=models.Index(
                condition=models.Q(("tenant__gt", uuid.UUID("00000000-0000-0000-0000-000000000000"))),
                fields=["tenant", "-started_at", "-id"],
                name="pipeline_runs_listed",
            ),
        ),
        RemoveIndexConcurrently(model_name="pipelinerun", name="pipeline_run_newest"),
    ]
