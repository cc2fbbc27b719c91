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
                help_text="Since when nobody could renew the lease at the last outage of PostgreSQL.",
            ),
        ),
        migrations.AddField(
            model_name="leaderlease",
            name="outage_ended_at",
            field=models.DateTimeField(null=True, help_text="When somebody could again."),
        ),
        migrations.AddField(
            model_name="workerprocess",
            name="outage_at",
            field=models.DateTimeField(
                null=True,
                help_text="When an outage of PostgreSQL ended that it had come into. No run that it lost then counts as a stall.",
            ),
        ),
    ]
