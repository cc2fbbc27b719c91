from typing import Any

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"

    def ready(self) -> None:
        from django.contrib.auth.signals import user_logged_in

        from activities import maintenance
        from console import second_factor

        def apply_due(*arguments: Any) -> Any:
            # Imported here because only the leader and the console's own processes need the inbox.
            from console.inbox import undo

            return undo.apply_due(*arguments)

        maintenance.register(
            "held answers", apply_due, period=maintenance.TICK, owner="console.inbox.undo", budget=5.0
        )

        def notify_of_questions(*arguments: Any) -> Any:
            from console.inbox import questions

            return questions.notify()

        maintenance.register(
            "questions", notify_of_questions, period=2.0, owner="console.inbox.questions", budget=5.0
        )
        user_logged_in.connect(second_factor.ask_at_sign_in, dispatch_uid="console.second_factor")
