"""Celery tasks: runs granted activities, and registers the background tasks of the engine."""

from __future__ import annotations

from functools import partial

from celery import shared_task

from activities import background_tasks, budgets, bulk_jobs, dead_letters, dispatch, provider_batches
from activities.background_tasks import BackgroundTask
from activities.mailboxes import consumer
from activities.maintenance import platform_checks, retention
from activities.models.alert import ChannelKind
from activities.notifications import delivery, digests, webhooks
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
from tenants.retention import list_due_passes, purge_in_turns


@shared_task(name=RUN_TASK, ignore_result=True)
def run(*, tenant: str, activity: str, grant: str, role: str) -> None:
    """Run one granted activity. Safe to deliver twice, late or not at all."""
    dispatch.receive(tenant=tenant, activity=activity, grant=grant, role=role)


def _deliver_webhooks(troubled: str) -> int:
    return webhooks.deliver_waiting(troubled=troubled == "yes")


#: Columns: name, queue, Celery task, function, waiting rows. While there are such rows, the leader sends hints for the task. Tasks of one
#: queue are checked in this order.
BACKGROUND_TASKS = (
    BackgroundTask("budgets", SYSTEM_QUEUE, "budgets.look_after", budgets.release_where_room, budgets.needing_work),
    BackgroundTask("reservations", SYSTEM_QUEUE, "budgets.free_leftovers", budgets.release_stale_reservations, budgets.stale_reservations),
    BackgroundTask("mailbox-leases", SYSTEM_QUEUE, "mailboxes.give_back", consumer.release_all_expired, consumer.list_expired),
    BackgroundTask("dead-letters", DEAD_LETTERS, "deadletters.handle", dead_letters.handle_waiting, dead_letters.list_unhandled),
    BackgroundTask("batches-leaving", PROVIDER_BATCHES, "batches.leave", provider_batches.move_leaving, provider_batches.list_leaving),
    BackgroundTask("batches-collected", PROVIDER_BATCHES, "batches.gather", provider_batches.bind_items, provider_batches.list_collected),
    BackgroundTask("batches-due", PROVIDER_BATCHES, "batches.tend", provider_batches.advance_due, provider_batches.list_due),
    *(
        BackgroundTask(
            f"alerts-{kind}", notification_queue(kind), "alerts.deliver", delivery.deliver_waiting, partial(delivery.waiting, kind),
            arguments={"kind": kind},
        )
        for kind in ChannelKind.values
    ),
    BackgroundTask(
        "webhooks", OUTBOUND_WEBHOOKS, "webhooks.deliver", _deliver_webhooks, partial(webhooks.deliveries_waiting, troubled=False),
        arguments={"troubled": "no"},
    ),
    BackgroundTask(
        "webhooks-in-trouble", OUTBOUND_WEBHOOKS, "webhooks.deliver", _deliver_webhooks,
        partial(webhooks.deliveries_waiting, troubled=True), arguments={"troubled": "yes"},
    ),
    BackgroundTask("digests", DIGESTS, "digests.send", digests.send_due, digests.digests_due, keeps_result=True),
    BackgroundTask("bulk", SYSTEM_QUEUE, "bulk.work", bulk_jobs.work, bulk_jobs.jobs_waiting, keeps_result=True),
    BackgroundTask("retention", SYSTEM_QUEUE, "retention.look_after", purge_in_turns, list_due_passes, keeps_result=True),
    BackgroundTask(
        "forgotten-outputs", SYSTEM_QUEUE, "retention.forget_outputs", retention.forget_outputs, retention.outputs_to_forget,
        keeps_result=True,
    ),
    BackgroundTask("agents-health", SYSTEM_QUEUE, "agents.check_health", health.check_waiting, health.waiting),
    BackgroundTask("provider-probes", SYSTEM_QUEUE, "providers.probe", health.probe_failing, platform_checks.failing_providers),
)  # fmt: skip

background_tasks.register(*BACKGROUND_TASKS)
