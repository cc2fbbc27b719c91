from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    """Less to write: the index for lists of a status is without what is done, which is what most work comes to."""

    # As in 0024.
    atomic = False
    dependencies = [("activities", "0035_a_claim_changes_no_index")]

    operations = [
        AddIndexConcurrently(
            model_name="activity",
            index=models.Index(
                condition=models.Q(("indexed_status", "done"), _negated=True),
                fields=["tenant", "indexed_status", "created_at"],
                name="activities_not_done",
            ),
        ),
        RemoveIndexConcurrently(model_name="activity", name="activities_of_status"),
        # Room for later versions of a row on the page where it stands: in another place one costs a lock and its whole text in the log.
        migrations.RunSQL(
            [
                "ALTER TABLE activities_activity SET (fillfactor = 70)",
                "ALTER TABLE activities_wake SET (fillfactor = 75)",
            ],
            [
                "ALTER TABLE activities_activity SET (fillfactor = 85)",
                "ALTER TABLE activities_wake RESET (fillfactor)",
            ],
        ),
    ]
