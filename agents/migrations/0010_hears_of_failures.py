from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("agents", "0009_settings_by_key")]

    operations = [
        migrations.AddField(
            model_name="agentconfig",
            name="hears_of_failures",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether permanent failures of other roles wake this role, so that it can plan again (job.failed).",
            ),
        ),
    ]
