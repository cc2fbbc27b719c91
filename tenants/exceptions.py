"""What can go wrong with tenants, their members and their tokens."""

from __future__ import annotations

from typing import ClassVar


class TenantError(Exception):
    """Something about a tenant is not as the caller assumed."""

    code: ClassVar[str] = "tenant_error"
    status: ClassVar[int] = 409  # of an answer over HTTP


class TenantScopeConflict(TenantError):
    """Code that works for one tenant asked for another one inside the same transaction."""

    code = "tenant_scope_conflict"


class TenantOutOfSight(TenantScopeConflict):
    """The admin's request may not look at this tenant."""

    code = "tenant_out_of_sight"


class RowSecurityMissing(TenantError):
    """The database would not keep tenants apart, so the process refuses to start."""

    code = "row_security_missing"


class LimiterUnavailable(TenantError):
    """Redis did not answer in time, so nothing is known about the limit."""

    code = "limiter_unavailable"
