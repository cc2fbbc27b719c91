from django.db import migrations, models


class Migration(migrations.Migration):
    """Records and choices have one name in the menu of the admin and on its pages."""

    dependencies = [
        ("agents", "0013_configuration_changes"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="platformconfig",
            options={
                "ordering": ("key",),
                "verbose_name": "scheduling settings",
                "verbose_name_plural": "scheduling settings",
            },
        ),
        migrations.AlterField(
            model_name="agent",
            name="adapter",
            field=models.CharField(
                choices=[
                    ("http", "HTTP"),
                    ("inline", "Inline"),
                    ("anthropic", "Anthropic"),
                    ("openai", "OpenAI"),
                    ("cli", "CLI"),
                    ("batch", "Batch"),
                    ("a2a", "A2A"),
                ],
                default="http",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="agentconfig",
            name="adapter",
            field=models.CharField(
                blank=True,
                choices=[
                    ("http", "HTTP"),
                    ("inline", "Inline"),
                    ("anthropic", "Anthropic"),
                    ("openai", "OpenAI"),
                    ("cli", "CLI"),
                    ("batch", "Batch"),
                    ("a2a", "A2A"),
                ],
                max_length=16,
            ),
        ),
    ]
