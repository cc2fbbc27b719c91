from django.db import migrations


class Migration(migrations.Migration):
    """Records have one name in the menu of the admin and in the titles of its pages."""

    dependencies = [
        ("activities", "0039_names_of_held_answers"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="outputspool",
            options={"verbose_name": "pending output"},
        ),
        migrations.AlterModelOptions(
            name="turnedaway",
            options={"verbose_name": "refused work", "verbose_name_plural": "refused work"},
        ),
    ]
