from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("agents", "0010_hears_of_failures")]

    operations = [
        migrations.AddField(
            model_name="agentconfig",
            name="may_hold",
            field=models.JSONField(
                blank=True,
                db_default={},
                default=dict,
                help_text="The waiting work, in addition to its own, that its questions to people may hold: everything (true), or lists of pipelines, deliverables, roles or groups.",
            ),
        ),
    ]
