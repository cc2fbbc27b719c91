"""Celery's entry points, each one call long, and the errands that they run. Those of errands say how much was done."""

from __future__ import annotations

from functools import partial

from celery import shared_task

from activities import budget_waits, bulk, deadletters, digests, dispatch, errands, forgetting, mailboxes
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
from tenants import tracing
from tenants.retention import purging


@shared_task(name=RUN_TASK, ignore_result=True)
def run(*, tenant: str, activity: str, grant: str, role: str) -> None:
    """Run one granted activity. Safe to deliver twice, late or not at all."""
    dispatch.receive(tenant=tenant, activity=activity, grant=grant, role=role)


@shared_task(name="alerts.deliver", ignore_result=True)
@tracing.errand
def deliver_alerts(*, kind: str) -> int:
    """Send what is due to channels of one kind. Safe to deliver twice, late or not at all."""
    return delivery.deliver_waiting(kind)


@shared_task(name="digests.send", ignore_result=True)
@tracing.errand
def send_digests() -> int:
    """Compose the digests that are due. Safe to deliver twice, late or not at all."""
    return digests.send_due()


errands.register(errands.Errand(name="digests", queue=DIGESTS, task="digests.send", waiting=digests.due))


@shared_task(name="webhooks.deliver", ignore_result=True)
@tracing.errand
def deliver_webhooks(*, troubled: str) -> int:
    """Send what is due to webhooks, to those in trouble or to the others. Safe to deliver twice, late or not at all."""
    return webhooks.deliver_waiting(troubled=troubled == "yes")


@shared_task(name="deadletters.handle", ignore_result=True)
@tracing.errand
def handle_dead_letters() -> int:
    """Tell people of what failed for good. Safe to deliver twice, late or not at all; one process does it at a time."""
    return deadletters.handle_waiting()


@shared_task(name="mailboxes.give_back", ignore_result=True)
@tracing.errand
def give_back_batches() -> int:
    """Give back what consumers of mailboxes had when they died. Safe to deliver twice, late or not at all."""
    return mailboxes.give_back_all()


errands.register(
    errands.Errand(
        name="mailbox-leases", queue=SYSTEM_QUEUE, task="mailboxes.give_back", waiting=mailboxes.expired
    )
)


@shared_task(name="budgets.look_after", ignore_result=True)
@tracing.errand
def look_after_budgets() -> int:
    """Release what waits for money that is there. Safe to deliver twice, late or not at all."""
    return budget_waits.look_after()


@shared_task(name="budgets.free_leftovers", ignore_result=True)
@tracing.errand
def free_leftover_reservations() -> int:
    """Give back what is kept for runs that have ended. Safe to deliver twice, late or not at all."""
    return budget_waits.free_leftovers()


@shared_task(name="batches.leave", ignore_result=True)
@tracing.errand
def leave_batches() -> int:
    """Let go on at once what is wanted soon. Safe to deliver twice, late or not at all."""
    return leaving.leave()


@shared_task(name="batches.gather", ignore_result=True)
@tracing.errand
def gather_batches() -> int:
    """Bind what was collected to batches. Safe to deliver twice, late or not at all."""
    return gathering.gather()


@shared_task(name="batches.tend", ignore_result=True)
@tracing.errand
def tend_batches() -> int:
    """Send batches and take in their answers. Safe to deliver twice, late or not at all."""
    return tending.tend()


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
@tracing.errand
def work_on_bulk_jobs() -> int:
    """Go on with bulk jobs. Safe to deliver twice, late or not at all."""
    return bulk.work()


errands.register(errands.Errand(name="bulk", queue=SYSTEM_QUEUE, task="bulk.work", waiting=bulk.waiting))


@shared_task(name="retention.look_after", ignore_result=True)
@tracing.errand
def look_after_retention() -> int:
    """Delete what has been kept long enough, for some seconds. Safe to deliver twice, late or not at all."""
    return purging.look_after()


@shared_task(name="retention.forget_outputs", ignore_result=True)
@tracing.errand
def forget_outputs() -> int:
    """Delete outputs whose activities are gone from MongoDB. Safe to deliver twice, late or not at all."""
    return forgetting.forget_outputs()


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
