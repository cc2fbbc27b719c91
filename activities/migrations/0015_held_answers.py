import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant, TenantKey


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0014_counters_complete"),
        ("tenants", "0010_saved_views"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="HeldAnswer",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "shown",
                    models.PositiveIntegerField(help_text="The version of the item that the person saw."),
                ),
                ("deed", models.CharField(max_length=20)),
                (
                    "words",
                    models.CharField(help_text="The name of the action once it is done.", max_length=60),
                ),
                ("said", models.JSONField(default=dict, help_text="Notes, chosen option and result.")),
                ("due_at", models.DateTimeField(help_text="When it takes effect.")),
                (
                    "refusal",
                    models.CharField(
                        blank=True,
                        default="",
                        help_text="Why it could not take effect. Empty while it is held.",
                        max_length=500,
                    ),
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
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="activities.activity",
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
                (
                    "user",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("refusal", "")), fields=["due_at"], name="held_answers_due"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "user", "activity"), name="answer_held_once")
                ],
            },
        ),
        migrations.RunSQL(
            "ALTER TABLE activities_heldanswer ADD CONSTRAINT held_answer_of_user"
            " FOREIGN KEY (user_id) REFERENCES auth_user (id) ON DELETE CASCADE",
            "ALTER TABLE activities_heldanswer DROP CONSTRAINT held_answer_of_user",
        ),
        IsolateTenant("activities_heldanswer"),
        TenantKey("activities_heldanswer", "activity_id", "activities_activity"),
    ]
