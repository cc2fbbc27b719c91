"""The roles of agents in requests: wherever a role is named, underscores count as hyphens, as in the names of queues."""

from __future__ import annotations

from typing import Any

import django_filters

from agents.routing import role_named
from tenants.api.serializers import Text


class RoleName(Text):
    """The name of a role. It need not exist."""

    def to_internal_value(self, data: Any) -> str:
        return role_named(super().to_internal_value(data))


class RoleFilter(django_filters.CharFilter):
    def filter(self, rows: Any, value: str) -> Any:
        return super().filter(rows, role_named(value) if value else value)
