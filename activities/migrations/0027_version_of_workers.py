from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("activities", "0026_expiring_work")]

    operations = [
        migrations.AddField(
            model_name="workerprocess",
            name="version",
            field=models.CharField(
                blank=True, db_default="", default="", help_text="The version of its program.", max_length=40
            ),
        ),
    ]
