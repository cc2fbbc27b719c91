"""The admin of tenants, their members and tokens, and in `bases` what the admins of all apps share."""

from tenants.admin import access, audit, money, retention, tenant  # each registers its models
