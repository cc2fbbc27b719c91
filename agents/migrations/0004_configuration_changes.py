from django.db import migrations

# Table, whose row it is, and columns that are no configuration.
NOTED = (
    (
        "agents_agent",
        "''",
        "'health', 'health_detail', 'health_checked_at', 'health_failures', 'health_due_at'",
    ),
    ("agents_agentconfig", "'tenant_id'", ""),
    ("agents_agentversiondeployment", "''", ""),
    ("agents_platformconfig", "''", ""),
    ("agents_skill", "'tenant_id'", ""),
)


class Migration(migrations.Migration):
    """What processes keep of agents and their settings is dropped when it changes."""

    replaces = [("agents", "0013_configuration_changes")]  # the last of those that it stands for
    dependencies = [("agents", "0003_seed_roles"), ("tenants", "0004_functions")]

    operations = [
        migrations.RunSQL(
            f"CREATE TRIGGER configuration AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW "
            f"EXECUTE FUNCTION tenants_note_configuration({', '.join(filter(None, (whose, without)))})"
        )
        for table, whose, without in NOTED
    ]
