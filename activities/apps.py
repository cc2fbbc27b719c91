from django.apps import AppConfig


class ActivitiesConfig(AppConfig):
    name = "activities"

    def ready(self) -> None:
        from activities.maintenance import retention

        from . import receivers

        receivers.connect()
        retention.connect()
