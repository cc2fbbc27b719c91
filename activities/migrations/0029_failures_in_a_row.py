import django.db.models.deletion
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant


class Migration(migrations.Migration):
    dependencies = [("activities", "0028_planning_and_digests"), ("tenants", "0019_second_factors")]

    operations = [
        migrations.CreateModel(
            name="FailuresInARow",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "kind",
                    models.CharField(choices=[("role", "Role"), ("schedule", "Schedule")], max_length=8),
                ),
                (
                    "subject",
                    models.CharField(help_text="The role, or the id of the schedule.", max_length=63),
                ),
                ("count", models.PositiveBigIntegerField()),
                (
                    "error_code",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="The error code of the last failure.",
                        max_length=200,
                    ),
                ),
                ("since", models.DateTimeField(help_text="When the first failure was noticed.")),
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
                "verbose_name_plural": "failures in a row",
                "indexes": [models.Index(fields=["count"], name="failures_most")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "kind", "subject"), name="failures_once_per_subject"
                    )
                ],
            },
        ),
        IsolateTenant("activities_failuresinarow"),
    ]
