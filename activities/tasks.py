"""Celery's entry points, each one call long, and the errands that they run."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from celery import shared_task

from activities import deadletters, dispatch, errands
from activities.admission import Grant
from activities.alerts import delivery
from activities.models.alert import ChannelKind
from agents import health
from agents.routing import DEAD_LETTERS, RUN_TASK, SYSTEM_QUEUE, notification_queue


@shared_task(name=RUN_TASK, ignore_result=True)
def run(*, tenant: str, activity: str, grant: str, role: str) -> None:
    """Run one granted activity. Safe to deliver twice, late or not at all."""
    dispatch.work(Grant(UUID(activity), UUID(tenant), role, grant, started=False))


@shared_task(name="alerts.deliver", ignore_result=True)
def deliver_alerts(*, kind: str) -> None:
    """Send what is due to channels of one kind. Safe to deliver twice, late or not at all."""
    delivery.deliver_waiting(kind)


@shared_task(name="deadletters.handle", ignore_result=True)
def handle_dead_letters() -> None:
    """Tell people of what failed for good. Safe to deliver twice, late or not at all; one process does it at a time."""
    deadletters.handle_waiting()


errands.register(
    errands.Errand(
        name="dead-letters", queue=DEAD_LETTERS, task="deadletters.handle", waiting=deadletters.unhandled
    )
)
errands.register(
    errands.Errand(
        name="agents-health", queue=SYSTEM_QUEUE, task="agents.check_health", waiting=health.waiting
    )
)
for _kind in ChannelKind.values:
    errands.register(
        errands.Errand(
            name=f"alerts-{_kind}",
            queue=notification_queue(_kind),
            task="alerts.deliver",
            waiting=partial(delivery.waiting, _kind),
            arguments={"kind": _kind},
        )
    )
