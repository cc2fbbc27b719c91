from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"

    def ready(self) -> None:
        from django.contrib.auth.signals import user_logged_in

        from activities import maintenance
        from console import second_factor
        from console.inbox import undo

        maintenance.register(
            "held answers", undo.give_due, period=maintenance.TICK, owner="console.inbox.undo", budget=5.0
        )
        user_logged_in.connect(second_factor.ask_at_sign_in, dispatch_uid="console.second_factor")
