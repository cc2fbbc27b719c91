from pathlib import Path

from django.db import migrations

import tenants.events

SQL = Path(tenants.events.__file__).parent / "sql"


class Migration(migrations.Migration):
    """A change of priority or dates is an event of its own kind."""

    dependencies = [("tenants", "0013_events_by_key")]

    operations = [
        migrations.RunSQL(
            (SQL / "events_of_activities.sql").read_text(encoding="utf-8"), migrations.RunSQL.noop
        )
    ]
