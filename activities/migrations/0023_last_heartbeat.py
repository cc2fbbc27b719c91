from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("activities", "0022_outages"),
    ]

    operations = [
        migrations.AddField(
            model_name="activityrun",
            name="beat_at",
            field=models.DateTimeField(
                help_text="When the last one came, for people. Recovery compares `beats` alone.", null=True
            ),
        ),
    ]
