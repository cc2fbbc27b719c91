from django.apps import AppConfig


class OrchestratorConfig(AppConfig):
    name = "orchestrator"

    def ready(self) -> None:
        from orchestrator import ticks  # noqa: F401  # its check registers itself
        from tenants import tracing

        tracing.begin()
