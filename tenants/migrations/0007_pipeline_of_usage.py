from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0006_no_chain_of_departed_tenants")]

    operations = [
        migrations.AddField(
            model_name="usageentry",
            name="pipeline_id",
            field=models.UUIDField(
                help_text="The pipeline of the run, which is deleted before its usage.", null=True
            ),
        ),
    ]
