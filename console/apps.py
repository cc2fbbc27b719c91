from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"

    def ready(self) -> None:
        from activities import upkeep
        from console.held import giving

        upkeep.look_after("held answers", giving.give_due)
