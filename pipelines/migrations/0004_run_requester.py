from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("pipelines", "0003_deliverables")]

    operations = [
        migrations.AddField(
            model_name="pipelinerun",
            name="requested_identity",
            field=models.CharField(
                blank=True,
                db_default="",
                help_text="The identity of the caller who started it. Unlike a name, nobody can choose it.",
                max_length=100,
            ),
        ),
    ]
