"""The admin site and its login, open to everyone who may see something in it (`tenants.admin_scope`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, JsonResponse
from django.utils.functional import SimpleLazyObject
from unfold.forms import AuthenticationForm as UnfoldAuthenticationForm
from unfold.sites import UnfoldAdminSite

from tenants import admin_scope
from tenants.admin_scope import AdminScope

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class LoginForm(UnfoldAuthenticationForm):
    """Accepts only people with access. The error is the same as for an unknown name."""

    def confirm_login_allowed(self, user: User) -> None:
        AuthenticationForm.confirm_login_allowed(self, user)
        if not user.is_staff and admin_scope.of_user(user).is_empty:
            raise self.get_invalid_login_error()


class TenantAdminSite(UnfoldAdminSite):
    """The admin, which is also open to admins of a tenant who are not staff."""

    login_form: Any = LoginForm

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> Any:
        """Return the list lazily, because every page gets it, few render it, and building it checks permissions of each admin."""
        return SimpleLazyObject(lambda: super(TenantAdminSite, self).get_app_list(request, app_label))

    def autocomplete_view(self, request: HttpRequest) -> Any:
        """Find nothing for a text with a NUL character, which PostgreSQL refuses in any text. Django only checks it in forms."""
        if "\x00" in request.GET.get("term", ""):
            return JsonResponse({"results": [], "pagination": {"more": False}})
        return super().autocomplete_view(request)

    def has_permission(self, request: HttpRequest) -> bool:
        scope = getattr(request, "admin_scope", None)
        scope = scope if isinstance(scope, AdminScope) else admin_scope.of_user(request.user)
        return not scope.is_empty
