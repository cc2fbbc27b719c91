import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant


class Migration(migrations.Migration):
    dependencies = [("tenants", "0014_rescheduled_events")]

    operations = [
        migrations.CreateModel(
            name="Pause",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("pipeline", "Pipeline"),
                            ("provider", "Provider"),
                            ("schedule", "Schedule"),
                        ],
                        max_length=8,
                    ),
                ),
                (
                    "subject",
                    models.CharField(
                        help_text="The id of a pipeline or a schedule, or the name of a provider.",
                        max_length=63,
                    ),
                ),
                ("name", models.CharField(help_text="The name that people see.", max_length=200)),
                ("paused_by", models.CharField(max_length=200)),
                (
                    "paused_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "kind", "subject"), name="paused_once")
                ]
            },
        ),
        IsolateTenant("tenants_pause"),
    ]
