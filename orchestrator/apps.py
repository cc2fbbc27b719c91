from django.apps import AppConfig


class OrchestratorConfig(AppConfig):
    name = "orchestrator"

    def ready(self) -> None:
        from tenants import tracing

        from . import beat_tasks  # noqa: F401  # its check registers itself

        tracing.begin()
