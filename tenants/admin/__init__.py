"""The admin of tenants, their members and tokens, and in `bases` and `deeds` what the admins of all apps share."""

from tenants.admin import channels, members, tenant, tokens  # noqa: F401  # each registers its models
