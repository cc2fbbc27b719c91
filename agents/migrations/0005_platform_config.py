import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agents", "0004_sessions_and_skills"),
    ]

    operations = [
        migrations.CreateModel(
            name="PlatformConfig",
            fields=[
                ("key", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("value", models.JSONField(blank=True, default=dict)),
                (
                    "version",
                    models.PositiveIntegerField(
                        default=1,
                        editable=False,
                        help_text="Increases with every change; the ETag begins with it.",
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("updated_by", models.CharField(blank=True, default="", editable=False, max_length=200)),
            ],
            options={
                "ordering": ("key",),
            },
        ),
    ]
