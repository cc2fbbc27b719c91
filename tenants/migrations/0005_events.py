"""The triggers that record events, on tables of activities and pipelines too."""

from pathlib import Path

from django.db import migrations

import tenants.events

SQL = Path(tenants.events.__file__).parent / "sql"

# One index instead of two for a row that lives for a second. Only the numbering reads it, by tenant and in order of ids, which a sequence
# gives, so that they are unique without an index of their own.
ONE_KEY = (
    "ALTER TABLE tenants_freshevent DROP CONSTRAINT tenants_freshevent_pkey, "
    "ADD CONSTRAINT tenants_freshevent_pkey PRIMARY KEY (tenant_id, id)"
)


class Migration(migrations.Migration):
    replaces = [("tenants", "0028_note_of_one_activity")]  # the last of those that it stands for
    dependencies = [
        ("tenants", "0004_functions"),
        ("activities", "0001_tables"),
        ("pipelines", "0001_tables"),
    ]

    operations = [
        migrations.RunSQL(ONE_KEY),
        migrations.RunSQL([(SQL / "events_of_activities.sql").read_text(encoding="utf-8")]),
        migrations.RunSQL([(SQL / "record.sql").read_text(encoding="utf-8")]),
    ]
