"""The admin of tenants, their members and tokens. `bases` contains the base classes of all apps' admins."""

from tenants.admin import access, audit, money, retention, tenant  # each registers its models
