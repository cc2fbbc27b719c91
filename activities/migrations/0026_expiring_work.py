from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Work that may expire is found by its time, however much has ended."""

    # Beside work that goes on: the table is not locked while its index is made.
    atomic = False
    dependencies = [("activities", "0025_pauses")]

    operations = [
        AddIndexConcurrently(
            model_name="activity",
            index=models.Index(
                condition=models.Q(
                    ("expires_at__isnull", False),
                    ("status__in", ["awaiting_review", "awaiting_subtask", "blocked", "created"]),
                ),
                fields=["expires_at"],
                name="activities_expiring",
            ),
        ),
    ]
