from django.db import migrations

# One index instead of two for a row that lives for a second. Only the numbering reads it, by tenant and in order of ids, which a
# sequence gives, so that they are unique without an index of their own. The table is all but empty at any time: this takes no time.
ONE_KEY = migrations.RunSQL(
    "ALTER TABLE tenants_freshevent DROP CONSTRAINT tenants_freshevent_pkey, "
    "ADD CONSTRAINT tenants_freshevent_pkey PRIMARY KEY (tenant_id, id)",
    "ALTER TABLE tenants_freshevent DROP CONSTRAINT tenants_freshevent_pkey, "
    "ADD CONSTRAINT tenants_freshevent_pkey PRIMARY KEY (id)",
)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0023_plans")]

    operations = [
        ONE_KEY,
        migrations.RemoveIndex(model_name="freshevent", name="fresh_events_in_order"),
    ]
