"""The admin of tenants, their members and tokens, and in `bases` what the admins of all apps share."""

from tenants.admin import (  # noqa: F401  # each registers its models
    audit,
    channels,
    members,
    money,
    retention,
    tenant,
    tokens,
)
