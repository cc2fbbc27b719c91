"""Deliverers of alerts: several at once, fair between tenants, and killed during a delivery."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction
from django.db.models.functions import Now
from psycopg.errors import LockNotAvailable

from activities.models import AlertDelivery
from activities.models.alert import DeliveryState
from activities.notifications import delivery
from activities.notifications.delivery import deliver_waiting
from tenants.context import OWNER, SYSTEM, tenant_scope
from tenants.models import Tenant
from tests.engine import in_another_thread, simultaneously
from tests.integration.alert_delivery.channels import (
    channel_of,
    make_alert,
    make_due,
    states,
    the_delivery,
    waits_between,
)
from tests.receivers import HttpReceiver, MailReceiver, Posted
from tests.upkeep import run_task


class Died(BaseException):
    """Ends a deliverer in the middle of its work. No code of the project catches it."""


def test_two_deliverers_at_once_send_each_alert_once(tenant: Tenant, receiver: HttpReceiver) -> None:
    for number in range(10):
        channel_of(tenant, "slack", f"{receiver.url}/{number}", name=f"slack {number}")
    make_alert(tenant)

    sent = simultaneously(*[lambda: deliver_waiting("slack")] * 4)

    assert sum(sent) == 10
    assert sorted(posted.path for posted in receiver.posted) == [f"/hook/{number}" for number in range(10)]
    assert set(states(tenant)) == {"sent"}


def test_a_delivery_that_another_deliverer_is_claiming_is_skipped(tenant: Tenant) -> None:
    channel_of(tenant, "slack", "https://hooks.example.com/x")
    make_alert(tenant)

    with transaction.atomic(using=SYSTEM):
        mine = delivery._claim_delivery("slack", tenant.pk)
        theirs = in_another_thread(lambda: delivery._claim_delivery("slack", tenant.pk))

    assert (mine.id, theirs) == (the_delivery(tenant).pk, None)


def test_only_a_due_delivery_that_nobody_has_locked_is_claimed(tenant: Tenant) -> None:
    channel_of(tenant, "slack", "https://hooks.example.com/x")
    make_alert(tenant, "later")
    with tenant_scope(tenant.pk):
        AlertDelivery.objects.update(next_attempt_at=Now() + timedelta(hours=1))
    make_alert(tenant, "now")

    with tenant_scope(tenant.pk):  # as a process that delays the deliveries to a receiver
        AlertDelivery.objects.select_for_update().get(alert__title="now")
        assert in_another_thread(lambda: delivery._claim_delivery("slack", tenant.pk)) is None
    assert delivery._claim_delivery("slack", tenant.pk).title == "now"
    assert delivery._claim_delivery("slack", tenant.pk) is None


@pytest.mark.parametrize("platform", [False, True], ids=["of a tenant", "of the platform"])
def test_a_channel_with_a_call_in_progress_is_not_called_for_a_minute(
    tenant: Tenant, settings: Any, platform: bool
) -> None:
    settings.SLACK_WEBHOOK_URL = "https://hooks.example.com/x" if platform else ""
    if not platform:
        channel_of(tenant, "slack", "https://hooks.example.com/x")
    make_alert(tenant)
    make_alert(tenant)

    assert delivery._claim_delivery("slack", tenant.pk) is not None
    assert delivery._claim_delivery("slack", tenant.pk) is None
    with tenant_scope(tenant.pk):
        AlertDelivery.objects.update(claimed_at=Now() - timedelta(seconds=delivery.QUIET_SECONDS + 1))
    assert delivery._claim_delivery("slack", tenant.pk) is not None


def test_a_slow_channel_does_not_hold_up_other_channels(tenant: Tenant, receiver: HttpReceiver) -> None:
    slow = channel_of(tenant, "slack", f"{receiver.url}/slow", name="slow")
    for _ in range(3):
        make_alert(tenant)
    channel_of(tenant, "slack", f"{receiver.url}/quick", name="quick")
    make_alert(tenant)
    with tenant_scope(tenant.pk):
        first = AlertDelivery.objects.filter(channel_id=slow.pk).order_by("pk").first()
        assert first is not None
    claim = delivery._claim_delivery("slack", tenant.pk)
    assert claim.id == first.pk

    deliver_waiting("slack")

    assert [posted.path for posted in receiver.posted] == ["/hook/quick"]


def test_alerts_of_a_channel_arrive_in_order(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    for number in range(5):
        make_alert(tenant, f"alert {number}")

    deliver_waiting("slack")

    assert [posted.json["text"].splitlines()[0] for posted in receiver.posted] == [
        f"[warning] alert {number}" for number in range(5)
    ]


def test_deliveries_of_tenants_alternate(
    tenant: Tenant, other_tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_DELIVERY_THREADS = 1
    for owner in (tenant, other_tenant):
        channel_of(owner, "slack", f"{receiver.url}/{owner.slug}")
    for _ in range(5):
        make_alert(tenant)
    for _ in range(2):
        make_alert(other_tenant)

    deliver_waiting("slack")

    order = [posted.path.rpartition("/")[2] for posted in receiver.posted]
    assert order == ["acme", "globex", "acme", "globex", "acme", "acme", "acme"]


def test_slow_receivers_of_a_tenant_delay_only_that_tenant(
    tenant: Tenant, other_tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    """Slow receivers answer only after the other tenant has its alert, so a deliverer that waits for them fails."""
    settings.ORCHESTRATOR_DELIVERY_TENANT_LANE = 3
    arrived, sending_at_once = threading.Event(), []

    def answer(posted: Posted) -> Any:
        if posted.path.endswith("/quick"):
            arrived.set()
        else:
            with tenant_scope(tenant.pk):
                sending_at_once.append(AlertDelivery.objects.filter(state="sending").count())
            connections.close_all()
            assert arrived.wait(60)
        return 200, {}, b""

    receiver.answer = answer
    for number in range(6):
        channel_of(tenant, "slack", f"{receiver.url}/{number}", name=f"slack {number}")
    make_alert(tenant)
    channel_of(other_tenant, "slack", f"{receiver.url}/quick")
    make_alert(other_tenant)

    assert sum(simultaneously(*[lambda: deliver_waiting("slack")] * 2)) == 7

    assert max(sending_at_once) == 3
    assert set(states(tenant)) == {"sent"}


@pytest.mark.parametrize("step", ["_claim_delivery", "_update"])
def test_a_tenant_whose_delivery_cannot_be_claimed_or_recorded_delays_no_other(
    tenant: Tenant,
    other_tenant: Tenant,
    receiver: HttpReceiver,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    work = getattr(delivery, step)

    def fail_for_one(*arguments: Any, **changes: Any) -> Any:
        if tenant.pk in (arguments[-1], getattr(arguments[0], "tenant_id", None)):
            raise OperationalError("lock timeout") from LockNotAvailable("lock timeout")
        return work(*arguments, **changes)

    monkeypatch.setattr(delivery, step, fail_for_one)
    for owner in (tenant, other_tenant):
        channel_of(owner, "slack", f"{receiver.url}/{owner.slug}")
        make_alert(owner)

    deliver_waiting("slack")

    assert states(other_tenant) == ["sent"]


def test_a_deliverer_sends_at_most_its_limit(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    for _ in range(5):
        make_alert(tenant)

    assert (deliver_waiting("slack", limit=3), deliver_waiting("slack", limit=3)) == (3, 2)


def test_a_deliverer_stops_after_its_time(
    tenant: Tenant, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SECONDS_AT_ONCE", 0.0)
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)

    assert deliver_waiting("slack") == 0


@pytest.mark.parametrize(
    ("kind", "after", "times"), [("slack", "unknown", 1), ("webhook", "sent", 2), ("email", "unknown", 1)]
)
def test_a_deliverer_that_dies_before_it_records_a_delivery_repeats_only_webhooks(
    tenant: Tenant,
    receiver: HttpReceiver,
    mails: MailReceiver,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    after: str,
    times: int,
) -> None:
    channel_of(tenant, kind, "ops@example.com" if kind == "email" else receiver.url)
    make_alert(tenant)

    def die(*arguments: Any, **changes: Any) -> None:
        raise Died

    with monkeypatch.context() as dying:
        dying.setattr(delivery, "_update", die)
        with pytest.raises(Died):
            deliver_waiting(kind)
    interrupted = the_delivery(tenant)
    deliver_waiting(kind)
    too_early = the_delivery(tenant)
    make_due(tenant)
    deliver_waiting(kind)

    assert (interrupted.state, interrupted.attempts) == ("sending", 1)
    assert waits_between(interrupted, 290, 300)
    assert too_early.state == "sending"
    assert (states(tenant), len(receiver.posted) + len(mails.mails)) == ([after], times)
    assert len({posted.headers.get("webhook-id") for posted in receiver.posted}) <= 1
    assert after == "sent" or "ended before it recorded" in the_delivery(tenant).last_error


def test_a_webhook_that_kills_every_deliverer_fails_after_eight_attempts(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    channel_of(tenant, "webhook", receiver.url)
    make_alert(tenant)
    with tenant_scope(tenant.pk):
        AlertDelivery.objects.update(state=DeliveryState.SENDING, attempts=8)
    make_due(tenant)

    deliver_waiting("webhook")

    assert (states(tenant), receiver.posted) == (["failed"], [])


@pytest.mark.parametrize("kind", ["slack", "webhook"])
@pytest.mark.parametrize(("status", "state"), [(200, "sent"), (500, "pending"), (404, "failed")])
def test_the_result_of_a_deliverer_that_timed_out_still_counts(
    tenant: Tenant, receiver: HttpReceiver, kind: str, status: int, state: str
) -> None:
    channel_of(tenant, kind, receiver.url)
    make_alert(tenant)

    def time_out_meanwhile(posted: Posted) -> Any:
        in_another_thread(lambda: (make_due(tenant), delivery._end_interrupted(kind)))
        return status, {}, b"at last"

    receiver.answer = time_out_meanwhile

    deliver_waiting(kind, limit=1)

    assert (states(tenant), len(receiver.posted)) == ([state], 1)


def test_a_late_result_does_not_change_a_later_claim(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "webhook", receiver.url)
    make_alert(tenant)
    late = delivery._claim_delivery("webhook", tenant.pk)
    make_due(tenant)
    delivery._end_interrupted("webhook")
    make_due(tenant)
    assert delivery._claim_delivery("webhook", tenant.pk).attempt == 2

    delivery._update(late, state=DeliveryState.FAILED, last_error="late")

    assert states(tenant) == ["sending"]


def test_a_failed_delivery_can_be_sent_again(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)
    receiver.answer_with((404, {}, b""), (200, {}, b""))
    deliver_waiting("slack")

    first = delivery.send_again(the_delivery(tenant))
    second = delivery.send_again(the_delivery(tenant))
    deliver_waiting("slack")

    assert (first, second, states(tenant)) == (True, False, ["sent"])
    assert not delivery.send_again(the_delivery(tenant))


def test_no_transaction_is_open_during_a_call_of_a_receiver(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)
    open_transactions: list[int] = []

    def count() -> None:
        with connections[OWNER].cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            open_transactions.append(cursor.fetchone()[0])

    def count_and_answer(posted: Posted) -> Any:
        in_another_thread(count)
        return 200, {}, b""

    receiver.answer = count_and_answer

    deliver_waiting("slack")

    assert open_transactions == [0]


def test_the_task_delivers_alerts_once(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "webhook", receiver.url)
    make_alert(tenant)

    run_task("alerts.deliver", kind="webhook")
    run_task("alerts.deliver", kind="webhook")

    assert (states(tenant), len(receiver.posted)) == (["sent"], 1)


def test_waiting_deliveries_are_selected_by_an_index(tenant: Tenant) -> None:
    """Many were sent before. The leader runs this query every second."""
    channel_of(tenant, "slack", "https://hooks.example.com/x")
    alert_id = make_alert(tenant)
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute(
            "INSERT INTO activities_alertdelivery (id, tenant_id, alert_id, channel_kind, channel_id, channel_name, state, attempts,"
            " last_error) SELECT gen_random_uuid(), %s, %s, 'slack', gen_random_uuid(), 'old', 'sent', 1, '' FROM generate_series(1, 5000)",
            [tenant.pk, alert_id],
        )
        cursor.execute("ANALYZE activities_alertdelivery")

    plan = delivery.waiting("slack").using(SYSTEM).explain()

    assert "deliveries_due" in plan
