"""Celery's entry points, each one call long, and the background tasks that they run. Those of background tasks say how much was done.

What comes of those that are seldom and long is kept, for whoever runs the platform (Task results in the admin): they do not ignore it.
"""

from __future__ import annotations

from functools import partial

from celery import shared_task

from activities.dead_letters import escalation
from activities.mailboxes import consumer
from activities.maintenance import platform_checks, retention
from activities.models.alert import ChannelKind
from activities.notifications import delivery, digests
from activities.provider_batches import items, lifecycle
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
from tenants import tracing
from tenants.retention import purging

from . import background_tasks, budgets, bulk_jobs, dispatch, webhooks


@shared_task(name=RUN_TASK, ignore_result=True)
def run(*, tenant: str, activity: str, grant: str, role: str) -> None:
    """Run one granted activity. Safe to deliver twice, late or not at all."""
    dispatch.receive(tenant=tenant, activity=activity, grant=grant, role=role)


@shared_task(name="alerts.deliver", ignore_result=True)
@tracing.background_task
def deliver_alerts(*, kind: str) -> int:
    """Send what is due to channels of one kind. Safe to deliver twice, late or not at all."""
    return delivery.deliver_waiting(kind)


@shared_task(name="digests.send", ignore_result=False)
@tracing.background_task
def send_digests() -> int:
    """Compose the digests that are due. Safe to deliver twice, late or not at all."""
    return digests.send_due()


background_tasks.register(
    background_tasks.BackgroundTask(
        name="digests", queue=DIGESTS, task="digests.send", waiting=digests.digests_due
    )
)


@shared_task(name="webhooks.deliver", ignore_result=True)
@tracing.background_task
def deliver_webhooks(*, troubled: str) -> int:
    """Send what is due to webhooks, to those in trouble or to the others. Safe to deliver twice, late or not at all."""
    return webhooks.deliver_waiting(troubled=troubled == "yes")


@shared_task(name="deadletters.handle", ignore_result=True)
@tracing.background_task
def handle_dead_letters() -> int:
    """Tell people of what failed for good. Safe to deliver twice, late or not at all; one process does it at a time."""
    return escalation.handle_waiting()


@shared_task(name="mailboxes.give_back", ignore_result=True)
@tracing.background_task
def give_back_batches() -> int:
    """Give back what consumers of mailboxes had when they died. Safe to deliver twice, late or not at all."""
    return consumer.give_back_all()


background_tasks.register(
    background_tasks.BackgroundTask(
        name="mailbox-leases", queue=SYSTEM_QUEUE, task="mailboxes.give_back", waiting=consumer.expired
    )
)


@shared_task(name="budgets.look_after", ignore_result=True)
@tracing.background_task
def look_after_budgets() -> int:
    """Release what waits for money that is there. Safe to deliver twice, late or not at all."""
    return budgets.release_where_room()


@shared_task(name="budgets.free_leftovers", ignore_result=True)
@tracing.background_task
def free_leftover_reservations() -> int:
    """Give back what is kept for runs that have ended. Safe to deliver twice, late or not at all."""
    return budgets.free_leftovers()


@shared_task(name="batches.leave", ignore_result=True)
@tracing.background_task
def leave_batches() -> int:
    """Let go on at once what is wanted soon. Safe to deliver twice, late or not at all."""
    return lifecycle.leave()


@shared_task(name="batches.gather", ignore_result=True)
@tracing.background_task
def gather_batches() -> int:
    """Bind what was collected to batches. Safe to deliver twice, late or not at all."""
    return items.gather()


@shared_task(name="batches.tend", ignore_result=True)
@tracing.background_task
def tend_batches() -> int:
    """Send batches and take in their answers. Safe to deliver twice, late or not at all."""
    return lifecycle.tend()


background_tasks.register(
    background_tasks.BackgroundTask(
        name="batches-leaving", queue=PROVIDER_BATCHES, task="batches.leave", waiting=lifecycle.due_to_leave
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        name="batches-collected", queue=PROVIDER_BATCHES, task="batches.gather", waiting=items.collected
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        name="batches-due", queue=PROVIDER_BATCHES, task="batches.tend", waiting=lifecycle.due
    )
)


@shared_task(name="bulk.work", ignore_result=False)
@tracing.background_task
def work_on_bulk_jobs() -> int:
    """Go on with bulk jobs. Safe to deliver twice, late or not at all."""
    return bulk_jobs.work()


background_tasks.register(
    background_tasks.BackgroundTask(
        name="bulk", queue=SYSTEM_QUEUE, task="bulk.work", waiting=bulk_jobs.jobs_waiting
    )
)


@shared_task(name="retention.look_after", ignore_result=False)
@tracing.background_task
def look_after_retention() -> int:
    """Delete what has been kept long enough, for some seconds. Safe to deliver twice, late or not at all."""
    return purging.purge_in_turns()


@shared_task(name="retention.forget_outputs", ignore_result=False)
@tracing.background_task
def forget_outputs() -> int:
    """Delete outputs whose activities are gone from MongoDB. Safe to deliver twice, late or not at all."""
    return retention.forget_outputs()


background_tasks.register(
    background_tasks.BackgroundTask(
        name="retention", queue=SYSTEM_QUEUE, task="retention.look_after", waiting=purging.waiting
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        name="forgotten-outputs",
        queue=SYSTEM_QUEUE,
        task="retention.forget_outputs",
        waiting=retention.outputs_to_forget,
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        name="budgets", queue=SYSTEM_QUEUE, task="budgets.look_after", waiting=budgets.waiting
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        name="reservations", queue=SYSTEM_QUEUE, task="budgets.free_leftovers", waiting=budgets.leftovers
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        name="dead-letters", queue=DEAD_LETTERS, task="deadletters.handle", waiting=escalation.unhandled
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        name="agents-health", queue=SYSTEM_QUEUE, task="agents.check_health", waiting=health.waiting
    )
)
background_tasks.register(
    background_tasks.BackgroundTask(
        name="provider-probes",
        queue=SYSTEM_QUEUE,
        task="providers.probe",
        waiting=platform_checks.failing_providers,
    )
)
for _kind in ChannelKind.values:
    background_tasks.register(
        background_tasks.BackgroundTask(
            name=f"alerts-{_kind}",
            queue=notification_queue(_kind),
            task="alerts.deliver",
            waiting=partial(delivery.waiting, _kind),
            arguments={"kind": _kind},
        )
    )
for _troubled in ("no", "yes"):
    background_tasks.register(
        background_tasks.BackgroundTask(
            name="webhooks-in-trouble" if _troubled == "yes" else "webhooks",
            queue=OUTBOUND_WEBHOOKS,
            task="webhooks.deliver",
            waiting=partial(webhooks.deliveries_waiting, troubled=_troubled == "yes"),
            arguments={"troubled": _troubled},
        )
    )
