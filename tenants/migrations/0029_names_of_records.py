from django.db import migrations


class Migration(migrations.Migration):
    """Records have one name in the menu of the admin and in the titles of its pages."""

    dependencies = [
        ("tenants", "0028_note_of_one_activity"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="apitoken",
            options={"ordering": ("-created_at",), "verbose_name": "API token"},
        ),
        migrations.AlterModelOptions(
            name="breakglass",
            options={"verbose_name": "break-glass session"},
        ),
        migrations.AlterModelOptions(
            name="departedtenant",
            options={"ordering": ("-began_at",), "verbose_name": "off-boarded tenant"},
        ),
        migrations.AlterModelOptions(
            name="membership",
            options={"verbose_name": "member"},
        ),
        migrations.AlterModelOptions(
            name="retentiontally",
            options={"verbose_name": "deleted rows", "verbose_name_plural": "deleted rows"},
        ),
        migrations.AlterModelOptions(
            name="webhookendpoint",
            options={"verbose_name": "webhook"},
        ),
    ]
