import uuid

from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Ascending, so that what is new comes at the right end of an index: pages there are filled, and those in the middle are split in
    halves. They are read backwards."""

    # As in 0024.
    atomic = False
    dependencies = [("activities", "0031_scopes_of_mailboxes")]

    operations = [
        AddIndexConcurrently(
            model_name="activity",
            index=models.Index(
                condition=models.Q(("tenant__gt", uuid.UUID("00000000-0000-0000-0000-000000000000"))),
                fields=["tenant", "created_at", "id"],
                name="activities_by_time",
            ),
        ),
        AddIndexConcurrently(
            model_name="activity",
            index=models.Index(
                condition=models.Q(("status", ""), _negated=True),
                fields=["tenant", "status", "created_at"],
                name="activities_by_status",
            ),
        ),
        RemoveIndexConcurrently(model_name="activity", name="activities_listed"),
        RemoveIndexConcurrently(model_name="activity", name="activities_listed_by_status"),
    ]
