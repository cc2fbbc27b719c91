import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant, TenantKey

TABLE = "activities_snoozeditem"


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0015_held_answers"),
        ("tenants", "0010_saved_views"),
    ]

    operations = [
        migrations.CreateModel(
            name="SnoozedItem",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("until", models.DateTimeField()),
                (
                    "version",
                    models.IntegerField(help_text="The version of the activity when it was snoozed."),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "activity",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="activities.activity",
                    ),
                ),
                (
                    "membership",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="tenants.membership",
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="tenants.tenant",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("tenant", "activity", "membership"), name="snoozed_once_per_member"
                    )
                ],
                "indexes": [models.Index(fields=["tenant", "membership"], name="snoozed_by_member")],
            },
        ),
        IsolateTenant(TABLE),
        TenantKey(TABLE, "activity_id", "activities_activity"),
        TenantKey(TABLE, "membership_id", "tenants_membership"),
    ]
