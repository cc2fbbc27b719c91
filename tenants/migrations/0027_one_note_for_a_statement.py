from pathlib import Path

import django.contrib.postgres.fields
from django.db import migrations, models

import tenants.events

SQL = Path(tenants.events.__file__).parent / "sql"


class Migration(migrations.Migration):
    """What one statement adds to histories is noted by one row instead of one for each activity."""

    dependencies = [("tenants", "0026_configuration_changes")]

    operations = [
        migrations.AddField(
            "freshevent",
            "activities",
            django.contrib.postgres.fields.ArrayField(
                models.UUIDField(),
                null=True,
                help_text="The activities that have new entries in their histories.",
                size=None,
            ),
        ),
        migrations.AddField(
            "freshevent",
            "seqs",
            django.contrib.postgres.fields.ArrayField(
                models.IntegerField(),
                null=True,
                help_text="The first new position in each of these histories, then the last in each.",
                size=None,
            ),
        ),
        migrations.AlterField(
            "freshevent",
            "kind",
            models.CharField(
                max_length=32, null=True, help_text="If empty, the histories determine the kinds."
            ),
        ),
        migrations.RunSQL(
            "UPDATE tenants_freshevent SET activities = ARRAY[activity_id], seqs = ARRAY[first_seq, last_seq], activity_id = NULL"
            " WHERE kind IS NULL",
            migrations.RunSQL.noop,
        ),
        migrations.RunSQL(
            (SQL / "events_of_activities.sql").read_text(encoding="utf-8"), migrations.RunSQL.noop
        ),
        migrations.RemoveField("freshevent", "first_seq"),
        migrations.RemoveField("freshevent", "last_seq"),
    ]
