from pathlib import Path

from django.db import migrations

import tenants.events

SQL = Path(tenants.events.__file__).parent / "sql"


class Migration(migrations.Migration):
    """The event of a failure has the code of its error and how many attempts there were."""

    dependencies = [("tenants", "0020_slack_users")]

    operations = [
        migrations.RunSQL(
            (SQL / "events_of_activities.sql").read_text(encoding="utf-8"), migrations.RunSQL.noop
        )
    ]
