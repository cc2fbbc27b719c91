"""When PostgreSQL was away for all, and which workers that concerned."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0021_file_scopes"),
    ]

    operations = [
        migrations.AddField(
            model_name="leaderlease",
            name="outage_began_at",
            field=models.DateTimeField(
                null=True,
                help_text="The time from which nobody could renew the lease, in the last outage of PostgreSQL.",
            ),
        ),
        migrations.AddField(
            model_name="leaderlease",
            name="outage_ended_at",
            field=models.DateTimeField(
                null=True, help_text="The time from which the lease could be renewed again."
            ),
        ),
        migrations.AddField(
            model_name="workerprocess",
            name="outage_at",
            field=models.DateTimeField(
                null=True,
                help_text="The end of the outage of PostgreSQL that it was affected by. The runs that it lost then do not count as stalls.",
            ),
        ),
    ]
