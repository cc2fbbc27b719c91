from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"

    def ready(self) -> None:
        from activities import maintenance
        from console.held import giving

        maintenance.register(
            "held answers", giving.give_due, period=maintenance.TICK, owner="console.held.giving", budget=5.0
        )
