from django.apps import AppConfig
from unfold.apps import BasicAppConfig

# Wherever Django is set up the Celery application is made, or tasks would be sent by an application without settings.
from orchestrator import celery  # noqa: F401


class OrchestratorConfig(AppConfig):
    name = "orchestrator"
    default = True

    def ready(self) -> None:
        from tenants import tracing

        from . import beat_tasks  # noqa: F401  # its check registers itself

        tracing.begin()


class AdminConfig(BasicAppConfig):
    """The theme of the admin, with our own idea of who gets in."""

    def ready(self) -> None:
        from django.contrib import admin
        from django.contrib.admin import sites

        from .admin_site import TenantAdminSite

        admin.site = sites.site = TenantAdminSite()
