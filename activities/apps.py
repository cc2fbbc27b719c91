from django.apps import AppConfig


class ActivitiesConfig(AppConfig):
    name = "activities"

    def ready(self) -> None:
        from activities import receivers, retention

        receivers.connect()
        retention.connect()
