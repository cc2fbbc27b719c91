"""Deliveries that fail: which are retried, which may have arrived, and which fail permanently."""

from __future__ import annotations

import threading
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db.models.functions import Now

from activities.models import AlertDelivery, NotificationChannel
from activities.notifications import backends, delivery
from activities.notifications.delivery import deliver_waiting
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.integration.alert_delivery.channels import (
    channel_of,
    deliveries,
    make_alert,
    make_due,
    states,
    the_delivery,
    wait_of,
    waits_between,
)
from tests.receivers import HttpReceiver, Posted


@pytest.mark.parametrize("status", [500, 502, 503, 408, 425, 429])
def test_a_delivery_that_certainly_did_not_arrive_is_retried(
    tenant: Tenant, receiver: HttpReceiver, status: int
) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)
    receiver.answer_with((status, {}, b"not now"), (200, {}, b"ok"))

    deliver_waiting("slack")
    first = the_delivery(tenant)
    too_early = deliver_waiting("slack")
    make_due(tenant)
    deliver_waiting("slack")

    assert (first.state, first.attempts) == ("pending", 1)
    assert f"{status}: not now" in first.last_error
    assert waits_between(first, 8, 12)
    assert too_early == 0
    assert (states(tenant), len(receiver.posted)) == (["sent"], 2)
    assert the_delivery(tenant).last_error == ""


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 410])
def test_a_delivery_that_the_receiver_refuses_fails(
    tenant: Tenant, receiver: HttpReceiver, status: int
) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)
    receiver.answer_with((status, {"Location": "/elsewhere"}, b"no_service"))

    deliver_waiting("slack")

    assert states(tenant) == ["failed"]
    assert "no_service" in the_delivery(tenant).last_error
    assert len(receiver.posted) == 1


def test_a_delivery_fails_after_eight_attempts_with_growing_delays(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)
    receiver.answer_with((500, {}, b""))
    waits = []

    while states(tenant) == ["pending"]:
        deliver_waiting("slack")
        waits.append(wait_of(the_delivery(tenant)))
        make_due(tenant)

    assert (states(tenant), len(receiver.posted)) == (["failed"], 8)
    assert all(later > earlier for earlier, later in pairwise(waits[:6]))
    assert max(waits[:7]) <= 3600 * 1.1


def test_a_retry_after_delays_every_delivery_to_that_receiver(
    tenant: Tenant, other_tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_DELIVERY_THREADS = 1  # so that the platform's channel comes first
    settings.SLACK_WEBHOOK_URL = receiver.url
    make_alert(tenant)
    make_alert(other_tenant)
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)
    receiver.answer_with((429, {"Retry-After": "120"}, b""), (200, {}, b"ok"))

    attempts = deliver_waiting("slack")

    waiting = [
        delivery
        for delivery in [*deliveries(tenant), *deliveries(other_tenant)]
        if delivery.channel_id is None
    ]
    assert {delivery.state for delivery in waiting} == {"pending"}
    assert all(wait_of(delivery) <= 120.5 for delivery in waiting)
    (attempted,) = (delivery.claimed_at for delivery in waiting if delivery.claimed_at)
    assert all(delivery.next_attempt_at > attempted + timedelta(seconds=118) for delivery in waiting)
    assert (attempts, len(receiver.posted)) == (2, 2)  # because the third went to the tenant's own channel


def test_a_retry_after_brings_no_attempt_forward_and_changes_no_delivery_that_has_ended(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    channel_of(tenant, "slack", receiver.url)
    for title in ("ended", "later", "now"):
        make_alert(tenant, title)
    with tenant_scope(tenant.pk):
        AlertDelivery.objects.filter(alert__title="ended").update(state="sent")
        AlertDelivery.objects.filter(alert__title="later").update(next_attempt_at=Now() + timedelta(hours=1))
    receiver.answer_with((429, {"Retry-After": "120"}, b""))

    assert deliver_waiting("slack") == 1

    ended, later, _ = deliveries(tenant)
    assert wait_of(ended) <= 0
    assert wait_of(later) > 3000


def test_a_disabled_channel_gets_no_deliveries(tenant: Tenant) -> None:
    channel_of(tenant, "slack", "https://hooks.example.com/x")
    with tenant_scope(tenant.pk):
        NotificationChannel.objects.update(enabled=False)

    make_alert(tenant)

    assert deliveries(tenant) == []


def test_a_message_that_slack_may_have_received_is_not_repeated(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)
    receiver.answer_with(None)

    deliver_waiting("slack")
    make_due(tenant)
    deliver_waiting("slack")

    assert states(tenant) == ["unknown"]
    assert len(receiver.posted) == 1


def test_a_webhook_is_repeated_with_the_same_id(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "webhook", receiver.url)
    make_alert(tenant)
    receiver.answer_with(None, (200, {}, b""))

    deliver_waiting("webhook")
    make_due(tenant)
    deliver_waiting("webhook")

    first, second = receiver.posted
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert states(tenant) == ["sent"]


def test_a_delivery_to_a_silent_receiver_is_unknown(
    tenant: Tenant, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.notifications.backends.SECONDS", 0.5)
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)
    finished = threading.Event()

    def keep_silent(posted: Posted) -> None:
        finished.wait(60)

    receiver.answer = keep_silent

    while not receiver.posted:  # because a busy machine may reach the timeout before anything is sent
        make_due(tenant)
        deliver_waiting("slack")
    finished.set()

    assert states(tenant) == ["unknown"]


def test_a_delivery_to_an_unreachable_receiver_is_retried(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW += ("127.0.0.1:1",)
    channel_of(tenant, "slack", "http://127.0.0.1:1/x")
    make_alert(tenant)

    deliver_waiting("slack")

    assert states(tenant) == ["pending"]


def test_a_long_response_of_a_receiver_counts(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)
    receiver.answer_with((200, {}, b"x" * 100_000))

    deliver_waiting("slack")

    assert states(tenant) == ["sent"]


def test_an_address_that_is_no_longer_allowed_is_not_called(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    channel_of(tenant, "webhook", receiver.url)
    make_alert(tenant)
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()

    deliver_waiting("webhook")

    assert (states(tenant), receiver.posted) == (["failed"], [])
    assert "https://" in the_delivery(tenant).last_error


def test_an_error_never_contains_the_secret_part_of_a_target(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)
    receiver.answer_with((404, {}, f"nothing at {receiver.url}".encode()))

    deliver_waiting("slack")

    assert "/hook" not in the_delivery(tenant).last_error


@pytest.mark.parametrize("change", ["deleted", "disabled", "key lost"])
def test_a_deleted_disabled_or_unreadable_channel_is_not_used(
    tenant: Tenant, receiver: HttpReceiver, settings: Any, change: str
) -> None:
    channel = channel_of(tenant, "webhook", receiver.url)
    make_alert(tenant)
    with tenant_scope(tenant.pk):
        if change == "deleted":
            NotificationChannel.objects.filter(pk=channel.pk).delete()
        elif change == "disabled":
            NotificationChannel.objects.filter(pk=channel.pk).update(enabled=False)
        else:
            settings.FIELD_ENCRYPTION_KEYS = ["other:" + "1" * 64]

    deliver_waiting("webhook")

    assert (states(tenant), receiver.posted) == (["failed"], [])


def test_an_internal_error_does_not_hold_up_other_alerts(
    tenant: Tenant, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant, "breaks")
    make_alert(tenant, "fine")
    payload = backends.slack_payload

    def broken(message: Any) -> Any:
        return {"text": {1, 2}} if message.title == "breaks" else payload(message)

    monkeypatch.setattr(backends, "slack_payload", broken)

    deliver_waiting("slack")

    assert (states(tenant), len(receiver.posted)) == (["unknown", "sent"], 1)


def test_an_internal_error_before_sending_is_retried(
    tenant: Tenant, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant)

    def broken(claim: Any) -> Any:
        raise KeyError("kind")

    monkeypatch.setattr(delivery, "_target_of", broken)

    deliver_waiting("slack")

    assert (states(tenant), receiver.posted) == (["pending"], [])
