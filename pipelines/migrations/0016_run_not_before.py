from django.db import migrations, models


class Migration(migrations.Migration):
    """The date of a run. Null in old rows, and in those that older processes write: first steps without room lose it, as before."""

    dependencies = [("pipelines", "0015_names_of_records")]

    operations = [
        migrations.AddField(
            model_name="pipelinerun",
            name="not_before",
            field=models.DateTimeField(
                editable=False,
                help_text="The date of its first steps, also of those that wait for room.",
                null=True,
            ),
        ),
    ]
