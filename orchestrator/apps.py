from typing import Any

from django.apps import AppConfig
from django.contrib.admin import autodiscover
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks

# Creates the Celery application in every Django process. Otherwise tasks would be sent by an application without settings.
from orchestrator import celery  # noqa: F401


class OrchestratorConfig(AppConfig):
    name = "orchestrator"
    default = True

    def ready(self) -> None:
        from orchestrator import beat  # noqa: F401  # registers its system check
        from tenants import tracing

        tracing.begin()


class AdminConfig(SimpleAdminConfig):
    """The admin with our own access rules. `orchestrator.admin` registers its pages, so that few processes load them."""

    default_site = "orchestrator.admin_site.TenantAdminSite"

    def ready(self) -> None:
        checks.register(check_dependencies, checks.Tags.admin)
        checks.register(check_every_admin, checks.Tags.admin)


def check_every_admin(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Run Django's own check after all admins are registered."""
    autodiscover()
    return check_admin_app(app_configs, **kwargs)
