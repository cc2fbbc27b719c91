"""What a worker does when somebody at the broker tells it to: nothing. It answers questions, and that is all.

Celery lets whoever can publish to the broker stop workers, revoke tasks and change their limits, and Flower has buttons for it. Here such
orders would be obeyed past tenants, limits and the audit trail, so workers do not know them. The API has what people need instead: to
cancel, to pause, to change a cap.
"""

from __future__ import annotations

from celery.worker.control import Panel

#: Orders that change nothing but what a worker tells: Flower cannot watch without them.
HARMLESS = frozenset({"enable_events", "disable_events", "heartbeat"})


def answer_only() -> None:
    """Forget every order of Celery's remote control; questions, such as `celery inspect ping`, are answered as before."""
    for name, about in list(Panel.meta.items()):
        if about.type == "control" and name not in HARMLESS:
            del Panel.meta[name], Panel.data[name]
