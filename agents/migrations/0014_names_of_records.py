from django.db import migrations


class Migration(migrations.Migration):
    """Records have one name in the menu of the admin and in the titles of its pages."""

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
    ]
