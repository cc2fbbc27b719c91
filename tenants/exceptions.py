"""The errors of tenants, their members and their tokens."""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID


class Refusal(Exception):
    """What was requested cannot be done. The base of each app's errors for users. `code` is for programs, and never changes."""

    code: str
    status: int = 409  # of an answer over HTTP

    def __init__(self, message: str, *, code: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.code, self.status = code or self.code, status or self.status


class TenantError(Refusal):
    """Base of errors about a tenant."""

    code = "tenant_error"


class NoneOfKind(Exception):
    """The base of each app's `NotFound`, such as `NotFound("schedule", schedule_id)`."""

    code: ClassVar[str] = "not_found"
    status: ClassVar[int] = 404

    def __init__(self, kind: str, key: str | UUID) -> None:
        super().__init__(f"There is no {kind} {repr(key) if isinstance(key, str) else key}.")


class OneOfKind(Exception):
    """The base of each app's `AlreadyExists`. `advice` says what to do instead."""

    code: ClassVar[str] = "already_exists"
    status: ClassVar[int] = 409

    def __init__(self, kind: str, key: str, advice: str = "") -> None:
        article = "an" if kind[0] in "aeio" else "a"
        super().__init__(f"There is {article} {kind} {key!r} already{advice and '; '}{advice}.")


class NotFound(NoneOfKind, TenantError):
    """The tenant has nothing of this kind and key."""


class AlreadyExists(OneOfKind, TenantError):
    """The tenant already has an object of this kind and name."""


class Forbidden(TenantError):
    """The caller's role in the tenant does not allow this."""

    code = "forbidden"
    status = 403


class PreconditionFailed(TenantError):
    """The object is no longer, or not yet, as the caller has read it."""

    code = "precondition_failed"
    status = 412


class TenantScopeConflict(TenantError):
    """Code in the scope of one tenant requested another tenant's scope in the same transaction."""

    code = "tenant_scope_conflict"


class TenantNotVisible(TenantScopeConflict):
    """The admin's request may not access this tenant."""

    code = "tenant_out_of_sight"


class RowSecurityMissing(TenantError):
    """The database would not keep tenants apart, so the process refuses to start."""

    code = "row_security_missing"


class LimiterUnavailable(TenantError):
    """Redis did not answer in time, so the state of the limit is unknown."""

    code = "limiter_unavailable"
    status = 503
