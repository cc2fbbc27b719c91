from django.db import migrations, models


class Migration(migrations.Migration):
    """Records and choices have one name in the menu of the admin and on its pages."""

    dependencies = [
        ("pipelines", "0014_missed_until"),
    ]

    operations = [
        migrations.AlterField(
            model_name="dataset",
            name="source",
            field=models.CharField(
                choices=[("db", "Database"), ("api", "API"), ("file", "File"), ("cache", "Cache")],
                default="db",
                max_length=5,
            ),
        ),
    ]
