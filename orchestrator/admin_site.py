"""The admin site and its login, open to everyone who may see something in it (`tenants.admin_scope`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin import AdminSite
from django.contrib.auth.forms import AuthenticationForm
from django.http import HttpRequest, JsonResponse
from django.urls import get_script_prefix
from django.utils.functional import SimpleLazyObject
from unfold.forms import AuthenticationForm as UnfoldAuthenticationForm
from unfold.sites import UnfoldAdminSite

from orchestrator import admin_menu
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

    def __init__(self, name: str = "admin") -> None:
        super().__init__(name)
        self._of_theme: dict[str, dict[str, Any]] = {}

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> Any:
        """Return the list lazily, because every page gets it, few render it, and building it checks permissions of each admin."""
        return SimpleLazyObject(lambda: super(TenantAdminSite, self).get_app_list(request, app_label))

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return the context of every page. What the theme adds depends on the settings alone, so it is computed once."""
        context, prefix = AdminSite.each_context(self, request), get_script_prefix()
        if prefix not in self._of_theme:
            self._of_theme[prefix] = {
                name: value
                for name, value in super().each_context(request).items()
                if name not in context or name.startswith("site_")
            }
        menu = admin_menu.render(request) if context["has_permission"] else ""
        return {**context, **self._of_theme[prefix], "sidebar_navigation": menu}

    def autocomplete_view(self, request: HttpRequest) -> Any:
        """Find nothing for a text with a NUL character, which PostgreSQL refuses in any text. Django only checks it in forms."""
        if "\x00" in request.GET.get("term", ""):
            return JsonResponse({"results": [], "pagination": {"more": False}})
        return super().autocomplete_view(request)

    def has_permission(self, request: HttpRequest) -> bool:
        scope = getattr(request, "admin_scope", None)
        scope = scope if isinstance(scope, AdminScope) else admin_scope.of_user(request.user)
        return not scope.is_empty
