"""Who gets into the admin: everybody who may see something there. What that is, `tenants.admin_scope` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from unfold.forms import AuthenticationForm as UnfoldAuthenticationForm
from unfold.sites import UnfoldAdminSite

from tenants import admin_scope
from tenants.admin_scope import Sight

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class LoginForm(UnfoldAuthenticationForm):
    """Opens to those who get in. Whether a name is unknown or may not enter, the answer is the same."""

    def confirm_login_allowed(self, user: User) -> None:
        AuthenticationForm.confirm_login_allowed(self, user)
        if not user.is_staff and admin_scope.of(user).is_empty:
            raise self.get_invalid_login_error()


class TenantAdminSite(UnfoldAdminSite):
    """The admin, also for people who are admins of a tenant and not of Django's staff."""

    login_form: Any = LoginForm

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> Any:
        """Made when something reads it: every page gets one, few show it, and to make it asks each admin what its reader may do."""
        return SimpleLazyObject(lambda: super(TenantAdminSite, self).get_app_list(request, app_label))

    def has_permission(self, request: HttpRequest) -> bool:
        scope = getattr(request, "sight", None)
        seen = scope if isinstance(scope, Sight) else admin_scope.of(request.user)
        return not seen.is_empty
