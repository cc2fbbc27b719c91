import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import tenants.identifiers
from tenants.row_security import IsolateTenant, TenantKey


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0009_retention"),
    ]

    operations = [
        migrations.AddConstraint(
            model_name="membership",
            constraint=models.UniqueConstraint(fields=("tenant", "id"), name="membership_of_tenant"),
        ),
        migrations.CreateModel(
            name="SavedView",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=tenants.identifiers.uuid7, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("page", models.CharField(help_text="The name of the page's URL.", max_length=32)),
                ("name", models.CharField(max_length=60)),
                ("query", models.CharField(blank=True, help_text="The query string.", max_length=1000)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                (
                    "membership",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="tenants.membership",
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
                    models.UniqueConstraint(
                        fields=("tenant", "membership", "page", "name"),
                        name="saved_view_named_once",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        IsolateTenant("tenants_savedview"),
        TenantKey("tenants_savedview", "membership_id", "tenants_membership"),
    ]
