from typing import Any

from django.apps import AppConfig
from django.contrib.admin import autodiscover
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks

# Wherever Django is set up the Celery application is made, or tasks would be sent by an application without settings.
from orchestrator import celery  # noqa: F401


class OrchestratorConfig(AppConfig):
    name = "orchestrator"
    default = True

    def ready(self) -> None:
        from orchestrator import beat  # noqa: F401  # its check registers itself
        from tenants import tracing

        tracing.begin()


class AdminConfig(SimpleAdminConfig):
    """The admin, with our own idea of who gets in. `orchestrator.admin` registers its pages, so few processes load them."""

    default_site = "orchestrator.admin_site.TenantAdminSite"

    def ready(self) -> None:
        checks.register(check_dependencies, checks.Tags.admin)
        checks.register(check_every_admin, checks.Tags.admin)


def check_every_admin(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Django's own check, which looks at what is registered, after everything has been."""
    autodiscover()
    return check_admin_app(app_configs, **kwargs)
