"""Celery's entry points, each one call long, and the errands that they run."""

from __future__ import annotations

from functools import partial

from celery import shared_task

from activities import budget_waits, bulk, deadletters, digests, dispatch, errands, forgetting
from activities.alerts import delivery
from activities.batches import gathering, leaving, tending
from activities.models.alert import ChannelKind
from activities.webhooks import delivery as webhooks
from agents import health
from agents.routing import (
    DEAD_LETTERS,
    DIGESTS,
    OUTBOUND_WEBHOOKS,
    PROVIDER_BATCHES,
    RUN_TASK,
    SYSTEM_QUEUE,
    notification_queue,
)  # fmt: skip
from tenants.retention import purging


@shared_task(name=RUN_TASK, ignore_result=True)
def run(*, tenant: str, activity: str, grant: str, role: str) -> None:
    """Run one granted activity. Safe to deliver twice, late or not at all."""
    dispatch.receive(tenant=tenant, activity=activity, grant=grant, role=role)


@shared_task(name="alerts.deliver", ignore_result=True)
def deliver_alerts(*, kind: str) -> None:
    """Send what is due to channels of one kind. Safe to deliver twice, late or not at all."""
    delivery.deliver_waiting(kind)


@shared_task(name="digests.send", ignore_result=True)
def send_digests() -> None:
    """Compose the digests that are due. Safe to deliver twice, late or not at all."""
    digests.send_due()


errands.register(errands.Errand(name="digests", queue=DIGESTS, task="digests.send", waiting=digests.due))


@shared_task(name="webhooks.deliver", ignore_result=True)
def deliver_webhooks(*, troubled: str) -> None:
    """Send what is due to webhooks, to those in trouble or to the others. Safe to deliver twice, late or not at all."""
    webhooks.deliver_waiting(troubled=troubled == "yes")


@shared_task(name="deadletters.handle", ignore_result=True)
def handle_dead_letters() -> None:
    """Tell people of what failed for good. Safe to deliver twice, late or not at all; one process does it at a time."""
    deadletters.handle_waiting()


@shared_task(name="budgets.look_after", ignore_result=True)
def look_after_budgets() -> None:
    """Release what waits for money that is there. Safe to deliver twice, late or not at all."""
    budget_waits.look_after()


@shared_task(name="budgets.free_leftovers", ignore_result=True)
def free_leftover_reservations() -> None:
    """Give back what is kept for runs that have ended. Safe to deliver twice, late or not at all."""
    budget_waits.free_leftovers()


@shared_task(name="batches.leave", ignore_result=True)
def leave_batches() -> None:
    """Let go on at once what is wanted soon. Safe to deliver twice, late or not at all."""
    leaving.leave()


@shared_task(name="batches.gather", ignore_result=True)
def gather_batches() -> None:
    """Bind what was collected to batches. Safe to deliver twice, late or not at all."""
    gathering.gather()


@shared_task(name="batches.tend", ignore_result=True)
def tend_batches() -> None:
    """Send batches and take in their answers. Safe to deliver twice, late or not at all."""
    tending.tend()


errands.register(
    errands.Errand(name="batches-leaving", queue=PROVIDER_BATCHES, task="batches.leave", waiting=leaving.due)
)
errands.register(
    errands.Errand(
        name="batches-collected", queue=PROVIDER_BATCHES, task="batches.gather", waiting=gathering.collected
    )
)
errands.register(
    errands.Errand(name="batches-due", queue=PROVIDER_BATCHES, task="batches.tend", waiting=tending.due)
)


@shared_task(name="bulk.work", ignore_result=True)
def work_on_bulk_jobs() -> None:
    """Go on with bulk jobs. Safe to deliver twice, late or not at all."""
    bulk.work()


errands.register(errands.Errand(name="bulk", queue=SYSTEM_QUEUE, task="bulk.work", waiting=bulk.waiting))


@shared_task(name="retention.look_after", ignore_result=True)
def look_after_retention() -> None:
    """Delete what has been kept long enough, for some seconds. Safe to deliver twice, late or not at all."""
    purging.look_after()


@shared_task(name="retention.forget_outputs", ignore_result=True)
def forget_outputs() -> None:
    """Delete outputs whose activities are gone from MongoDB. Safe to deliver twice, late or not at all."""
    forgetting.forget_outputs()


errands.register(
    errands.Errand(name="retention", queue=SYSTEM_QUEUE, task="retention.look_after", waiting=purging.waiting)
)
errands.register(
    errands.Errand(
        name="forgotten-outputs",
        queue=SYSTEM_QUEUE,
        task="retention.forget_outputs",
        waiting=forgetting.waiting,
    )
)
errands.register(
    errands.Errand(
        name="budgets", queue=SYSTEM_QUEUE, task="budgets.look_after", waiting=budget_waits.waiting
    )
)
errands.register(
    errands.Errand(
        name="reservations", queue=SYSTEM_QUEUE, task="budgets.free_leftovers", waiting=budget_waits.leftovers
    )
)
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
for _troubled in ("no", "yes"):
    errands.register(
        errands.Errand(
            name="webhooks-in-trouble" if _troubled == "yes" else "webhooks",
            queue=OUTBOUND_WEBHOOKS,
            task="webhooks.deliver",
            waiting=partial(webhooks.waiting, troubled=_troubled == "yes"),
            arguments={"troubled": _troubled},
        )
    )
