"""The database roles that processes work under, before any table of ours exists."""

from pathlib import Path

from django.db import migrations

ROLES = Path(__file__).resolve().parent.parent / "sql" / "roles.sql"


class Migration(migrations.Migration):
    initial = True
    dependencies = [
        ("contenttypes", "0002_remove_content_type_name"),
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [migrations.RunSQL([ROLES.read_text(encoding="utf-8")])]
