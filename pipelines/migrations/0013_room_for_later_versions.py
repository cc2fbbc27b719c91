from django.db import migrations

TABLES = {"pipelines_pipelinerun": 75, "pipelines_steprun": 60}


class Migration(migrations.Migration):
    """Room for later versions of a row on the page where it stands: in another place one needs entries of indexes, a lock, and its whole
    text in PostgreSQL's log. Pages that are full stay as they are."""

    dependencies = [("pipelines", "0012_run_labels")]

    operations = [
        migrations.RunSQL(
            [f"ALTER TABLE {table} SET (fillfactor = {share})" for table, share in TABLES.items()],
            [f"ALTER TABLE {table} RESET (fillfactor)" for table in TABLES],
        )
    ]
