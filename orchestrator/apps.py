from django.apps import AppConfig

# Wherever Django is set up the Celery application is made, or tasks would be sent by an application without settings.
from orchestrator import celery  # noqa: F401


class OrchestratorConfig(AppConfig):
    name = "orchestrator"

    def ready(self) -> None:
        from tenants import tracing

        from . import beat_tasks  # noqa: F401  # its check registers itself

        tracing.begin()
