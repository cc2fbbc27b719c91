from pathlib import Path

from django.db import migrations

import tenants.events

SQL = Path(tenants.events.__file__).parent / "sql"


class Migration(migrations.Migration):
    """The note of a statement about one activity is written without grouping and ordering."""

    dependencies = [("tenants", "0027_one_note_for_a_statement")]

    operations = [
        migrations.RunSQL(
            (SQL / "events_of_activities.sql").read_text(encoding="utf-8"), migrations.RunSQL.noop
        ),
    ]
