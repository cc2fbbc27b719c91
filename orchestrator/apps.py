from django.apps import AppConfig
from django.contrib.admin.apps import SimpleAdminConfig

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
    """The admin, with our own idea of who gets in. `orchestrator.urls` registers its pages, so workers and commands do not load them."""

    default_site = "orchestrator.admin_site.TenantAdminSite"
