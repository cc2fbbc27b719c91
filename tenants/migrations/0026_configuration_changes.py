from pathlib import Path

from django.db import migrations, models
from django.db.models.functions import Now

import tenants

SQL = Path(tenants.__file__).parent / "sql"


class Migration(migrations.Migration):
    """Whose configuration was changed, so that processes may keep what they have read of it until then."""

    dependencies = [("tenants", "0025_events_from_history")]

    operations = [
        migrations.CreateModel(
            name="ConfigurationChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("transaction", models.BigIntegerField(help_text="The id of the transaction in PostgreSQL.")),
                (
                    "concerns",
                    models.UUIDField(
                        help_text="The tenant whose configuration has changed. Empty for all tenants.",
                        null=True,
                    ),
                ),
                ("noted_at", models.DateTimeField(db_default=Now())),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("transaction", "concerns"),
                        name="configuration_change_once",
                        nulls_distinct=False,
                    )
                ],
            },
        ),
        migrations.RunSQL(
            (SQL / "configuration_changes.sql").read_text(encoding="utf-8"),
            "DROP FUNCTION tenants_note_configuration() CASCADE",
        ),
    ]
