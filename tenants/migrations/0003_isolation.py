from django.db import migrations

from tenants.row_security import IsolateTenant

# Whoever presents a token's hash may read that one row: this is how a request learns its tenant.
PRESENTED = "secret_hash = nullif(current_setting('app.token_hash', true), '')"
# A person who signed in may see which tenants are theirs.
OWN_MEMBERSHIP = "user_id = nullif(current_setting('app.user_id', true), '')::integer"


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_tenants")]

    operations = [
        IsolateTenant("tenants_tenant", "id"),
        IsolateTenant("tenants_apitoken", or_visible=PRESENTED),
        IsolateTenant("tenants_membership", or_visible=OWN_MEMBERSHIP),
    ]
