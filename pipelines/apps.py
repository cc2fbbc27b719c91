from django.apps import AppConfig


class PipelinesConfig(AppConfig):
    name = "pipelines"

    def ready(self) -> None:
        from pipelines import receivers, retention

        receivers.connect()
        retention.connect()
