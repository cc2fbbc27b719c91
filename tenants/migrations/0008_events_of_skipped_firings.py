"""An event for a time of a schedule that is skipped later: it was queued, and its execution was cancelled before it began."""

from django.db import migrations

TRIGGER = """
    CREATE TRIGGER events_of_skipped AFTER UPDATE OF state ON pipelines_firing FOR EACH ROW
    WHEN (NEW.state = 'skipped' AND OLD.state <> 'skipped') EXECUTE FUNCTION events_of_firings()
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0007_pipeline_of_usage")]

    operations = [
        migrations.RunSQL(TRIGGER, "DROP TRIGGER events_of_skipped ON pipelines_firing"),
    ]
