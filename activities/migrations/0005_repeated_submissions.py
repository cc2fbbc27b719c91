import django.db.models.deletion
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0004_alerts"),
        ("tenants", "0004_requests"),
    ]

    operations = [
        migrations.CreateModel(
            name="RepeatedSubmissions",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("agent_role", models.CharField(blank=True, default="", max_length=63)),
                ("count", models.PositiveBigIntegerField(default=0)),
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
                "verbose_name_plural": "repeated submissions",
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "agent_role"), name="repetitions_once_per_role")
                ],
            },
        ),
        IsolateTenant("activities_repeatedsubmissions"),
    ]
