from pathlib import Path

from django.db import migrations

import tenants.events

SQL = Path(tenants.events.__file__).parent / "sql"


class Migration(migrations.Migration):
    """The trigger of an activity's history finds its activities by key, whatever was planned when the table was empty."""

    dependencies = [("tenants", "0012_group_cap")]

    operations = [
        migrations.RunSQL(
            (SQL / "events_of_activities.sql").read_text(encoding="utf-8"), migrations.RunSQL.noop
        )
    ]
