from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"

    def ready(self) -> None:
        from activities import maintenance
        from console.inbox import undo

        maintenance.register(
            "held answers", undo.give_due, period=maintenance.TICK, owner="console.inbox.undo", budget=5.0
        )
