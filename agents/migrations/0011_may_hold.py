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
                help_text="Whose waiting work its questions to people may hold beside its own: everything (true), or lists of pipelines and deliverables by id, roles, and groups by key.",
            ),
        ),
    ]
