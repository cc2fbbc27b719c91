from pathlib import Path

from django.db import migrations, models

import tenants.events

SQL = Path(tenants.events.__file__).parent / "sql"


class Migration(migrations.Migration):
    """What an activity's history holds is written once. Fresh events from before are numbered as they are."""

    dependencies = [("tenants", "0024_fresh_events_by_tenant")]

    operations = [
        migrations.AddField(
            "freshevent", "first_seq", models.IntegerField(null=True, help_text="Of the activity's history.")
        ),
        migrations.AddField("freshevent", "last_seq", models.IntegerField(null=True)),
        migrations.AlterField(
            "freshevent",
            "kind",
            models.CharField(max_length=32, null=True, help_text="Empty: as the history says."),
        ),
        migrations.AlterField("freshevent", "at", models.DateTimeField(null=True)),
        migrations.AlterField("freshevent", "data", models.JSONField(null=True)),
        migrations.AlterField(
            "event",
            "id",
            models.BigIntegerField(
                primary_key=True,
                serialize=False,
                help_text="In the order of numbering. Readers only see the number.",
            ),
        ),
        migrations.RunSQL(
            (SQL / "events_of_activities.sql").read_text(encoding="utf-8"), migrations.RunSQL.noop
        ),
    ]
