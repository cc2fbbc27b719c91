from collections.abc import Callable
from typing import Any

from django.apps import AppConfig
from django.utils.module_loading import import_string


class ConsoleConfig(AppConfig):
    name = "console"

    def ready(self) -> None:
        from django.contrib.auth.signals import user_logged_in

        from activities import maintenance
        from console import second_factor

        def later(path: str) -> Callable[[], Any]:
            # Imported late because only the leader and the console's own processes need the inbox.
            return lambda: import_string(f"console.inbox.{path}")()

        maintenance.register(
            "held answers",
            later("undo.apply_due"),
            period=maintenance.TICK,
            owner="console.inbox.undo",
            budget=5.0,
        )
        maintenance.register(
            "questions", later("questions.notify"), period=2.0, owner="console.inbox.questions", budget=5.0
        )
        user_logged_in.connect(second_factor.ask_at_sign_in, dispatch_uid="console.second_factor")
