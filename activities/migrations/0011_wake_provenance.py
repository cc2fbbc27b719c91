from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("activities", "0010_bulk")]

    operations = [
        migrations.AddField(
            model_name="wake",
            name="provenance",
            field=models.JSONField(
                editable=False,
                help_text="The request that caused it, see tenants.request_context.",
                null=True,
            ),
        ),
    ]
