import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0010_saved_views"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name="apitoken",
            name="user",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                db_index=False,
                editable=False,
                help_text="The person behind the token. Empty: none, so that the token has no vote.",
                null=True,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        # By the database: whoever closes an account sees the tokens of one tenant at most.
        migrations.RunSQL(
            "ALTER TABLE tenants_apitoken ADD CONSTRAINT token_of_user"
            " FOREIGN KEY (user_id) REFERENCES auth_user (id) ON DELETE SET NULL",
            "ALTER TABLE tenants_apitoken DROP CONSTRAINT token_of_user",
        ),
    ]
