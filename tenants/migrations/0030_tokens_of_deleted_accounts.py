from django.db import migrations


class Migration(migrations.Migration):
    """A token still names its person after their account was deleted. Without a person it could decide more than before."""

    dependencies = [
        ("tenants", "0029_names_of_records"),
    ]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE tenants_apitoken DROP CONSTRAINT token_of_user",
            "ALTER TABLE tenants_apitoken ADD CONSTRAINT token_of_user"
            " FOREIGN KEY (user_id) REFERENCES auth_user (id) ON DELETE SET NULL NOT VALID",
        ),
    ]
