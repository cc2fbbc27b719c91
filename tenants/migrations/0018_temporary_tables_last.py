"""A function of the owner's looks at the caller's temporary tables last, also where it was made without saying so."""

from django.db import migrations

FUNCTION = "ALTER FUNCTION tenants_forget_usage(uuid, date, integer) SET search_path = pg_catalog, public"


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0017_bounds"),
    ]

    operations = [
        migrations.RunSQL(f"{FUNCTION}, pg_temp", FUNCTION),
    ]
