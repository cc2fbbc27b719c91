from typing import Any

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"

    def ready(self) -> None:
        from django.contrib.auth.signals import user_logged_in

        from activities import maintenance
        from console import second_factor

        def give_due(*arguments: Any) -> Any:
            # Here and not above: of all processes only those that lead and the console's own need what the inbox loads.
            from console.inbox import undo

            return undo.give_due(*arguments)

        maintenance.register(
            "held answers", give_due, period=maintenance.TICK, owner="console.inbox.undo", budget=5.0
        )

        def tell_of_questions(*arguments: Any) -> Any:
            from console.inbox import questions

            return questions.tell()

        maintenance.register(
            "questions", tell_of_questions, period=2.0, owner="console.inbox.questions", budget=5.0
        )
        user_logged_in.connect(second_factor.ask_at_sign_in, dispatch_uid="console.second_factor")
