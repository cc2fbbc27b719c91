"""Permissions by a caller's role and a token's scopes.

A view declares the role that it needs: `required_role = Role.ADMIN`, or by action or method, `{"approve": Role.REVIEWER,
"put": Role.ADMIN}`. By default, reading needs a viewer, and everything else an operator. Scopes only
restrict this further.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from tenants.models import Role
from tenants.principals import Principal, caller_of


class Forbidden(PermissionDenied):
    """The caller is known and may not do this. Names the missing role or scope."""

    def __init__(self, detail: str, **needed: str) -> None:
        super().__init__(detail, "forbidden")
        self.problem_members = needed


class RolePermission(BasePermission):
    """Allows callers whose role includes the one that the view needs, and whose token's scopes include its resource."""

    def has_permission(self, request: Request, view: Any) -> bool:
        principal = caller_of(request)
        if principal is None:
            return False
        if not hasattr(view, (request.method or "").lower()):
            return True  # The view has no such method, which is 405 and not a matter of permission.
        role = role_needed(request, view)
        if not principal.role.includes(role):
            raise Forbidden(
                f"This needs the role {role.value}; you act as {principal.role.value}.",
                required_role=role.value,
            )
        refuse_missing_scope(principal, view, "read" if request.method in SAFE_METHODS else "write")
        return True


class PlatformPermission(RolePermission):
    """Like `RolePermission` for reading. Changing what all tenants share needs a platform admin's token or session."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not super().has_permission(request, view):
            return False
        principal = caller_of(request)
        if request.method not in SAFE_METHODS and not (principal and principal.is_platform_admin):
            raise Forbidden("This changes what all tenants share, and needs a token of a platform admin.")
        return True


def role_needed(request: Request, view: Any) -> Role:
    """Return the lowest role that may make this request."""
    declared = getattr(view, "required_role", None)
    if isinstance(declared, Mapping):
        for name in (getattr(view, "action", None), (request.method or "").lower()):
            if name in declared:
                return Role(declared[name])
    elif declared is not None:
        return Role(declared)
    return Role.VIEWER if request.method in SAFE_METHODS else Role.OPERATOR


def has_scope(principal: Principal, resource: str | None, verb: str, *, key: str | None = None) -> bool:
    """Whether a caller's scopes include this verb for a resource, or for the one object with this key. No scopes include everything."""
    verbs = ("read", "write") if verb == "read" else ("write",)
    sufficient = {*verbs, *(f"{resource}:{each}" for each in verbs if resource)}
    if key:
        sufficient |= {f"{resource}:{each}:{key}" for each in verbs}
    return not principal.scopes or not sufficient.isdisjoint(principal.scopes)


def refuse_missing_scope(principal: Principal, view: Any, verb: str) -> None:
    """Raise `Forbidden` if the token has scopes and none of them includes the verb here. Writing includes reading.

    If a view has `scope_of_one`, a scope may name the one object of the address: `mailboxes:write:session-1`.
    """
    resource = getattr(view, "scope", None)
    named = getattr(view, "scope_of_one", None)
    if not has_scope(principal, resource, verb, key=view.kwargs.get(named) if named else None):
        needed = f"{resource}:{verb}" if resource else verb
        raise Forbidden(
            f"This needs the scope {needed}, which your token does not have.", required_scope=needed
        )
