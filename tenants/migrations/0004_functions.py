"""The audit trail's functions, and those by which roles write what they may not write themselves: totals, and changes of configuration."""

from pathlib import Path

from django.db import migrations

SQL = Path(__file__).resolve().parent.parent / "sql"
CONTENT = (SQL / "audit" / "content.sql").read_text(encoding="utf-8").strip()
NUMBERING = (SQL / "audit" / "numbering.sql").read_text(encoding="utf-8").replace("{content}", CONTENT)
GUARDS = (SQL / "audit" / "guards.sql").read_text(encoding="utf-8")


class Migration(migrations.Migration):
    replaces = [("tenants", "0026_configuration_changes")]  # the last of those that it stands for
    dependencies = [("tenants", "0003_isolation")]

    operations = [
        migrations.RunSQL([NUMBERING]),
        migrations.RunSQL([GUARDS]),
        migrations.RunSQL([(SQL / "forget_usage.sql").read_text(encoding="utf-8")]),
        migrations.RunSQL([(SQL / "configuration_changes.sql").read_text(encoding="utf-8")]),
    ]
