"""Deliveries that go wrong: what is tried again, what may have arrived, and what is given up."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest

from activities.models import NotificationChannel
from activities.notifications import backends, delivery
from activities.notifications.delivery import deliver_waiting
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.integration.alert_delivery.channels import (
    channel_of,
    deliveries,
    make_due,
    raised,
    states,
    the_delivery,
    wait_of,
)
from tests.receivers import HttpReceiver, Posted


@pytest.mark.parametrize("status", [500, 502, 503, 408, 425, 429])
def test_what_certainly_did_not_arrive_is_tried_again(
    tenant: Tenant, receiver: HttpReceiver, status: int
) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)
    receiver.answers((status, {}, b"not now"), (200, {}, b"ok"))

    deliver_waiting("slack")
    first = the_delivery(tenant)
    too_early = deliver_waiting("slack")
    make_due(tenant)
    deliver_waiting("slack")

    assert (first.state, first.attempts) == ("pending", 1)
    assert f"{status}: not now" in first.last_error
    assert 8 < wait_of(first) < 12
    assert too_early == 0
    assert (states(tenant), len(receiver.posted)) == (["sent"], 2)
    assert the_delivery(tenant).last_error == ""


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 410])
def test_what_the_receiver_does_not_want_is_given_up(
    tenant: Tenant, receiver: HttpReceiver, status: int
) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)
    receiver.answers((status, {"Location": "/elsewhere"}, b"no_service"))

    deliver_waiting("slack")

    assert states(tenant) == ["failed"]
    assert "no_service" in the_delivery(tenant).last_error
    assert len(receiver.posted) == 1


def test_after_eight_tries_it_is_given_up_and_the_delays_grow(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)
    receiver.answers((500, {}, b""))
    waits = []

    while states(tenant) == ["pending"]:
        deliver_waiting("slack")
        waits.append(wait_of(the_delivery(tenant)))
        make_due(tenant)

    assert (states(tenant), len(receiver.posted)) == (["failed"], 8)
    assert all(later > earlier for earlier, later in pairwise(waits[:6]))
    assert max(waits[:7]) <= 3600 * 1.1


def test_the_receivers_wish_to_be_left_alone_holds_for_all_that_goes_there(
    tenant: Tenant, other_tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_DELIVERY_THREADS = 1  # so that the platform's channel is the first
    settings.SLACK_WEBHOOK_URL = receiver.url
    raised(tenant)
    raised(other_tenant)
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)
    receiver.answers((429, {"Retry-After": "120"}, b""), (200, {}, b"ok"))

    tried = deliver_waiting("slack")

    waiting = [
        found for found in [*deliveries(tenant), *deliveries(other_tenant)] if found.channel_id is None
    ]
    assert {found.state for found in waiting} == {"pending"}
    assert all(118 < wait_of(found) <= 120.5 for found in waiting)
    assert (tried, len(receiver.posted)) == (2, 2)  # the third went to the tenant's own channel


def test_slack_is_not_told_twice_what_it_may_have_heard(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)
    receiver.answers(None)

    deliver_waiting("slack")
    make_due(tenant)
    deliver_waiting("slack")

    assert states(tenant) == ["unknown"]
    assert len(receiver.posted) == 1


def test_a_webhook_is_told_again_under_the_same_id(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "webhook", receiver.url)
    raised(tenant)
    receiver.answers(None, (200, {}, b""))

    deliver_waiting("webhook")
    make_due(tenant)
    deliver_waiting("webhook")

    first, second = receiver.posted
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert states(tenant) == ["sent"]


def test_a_receiver_that_says_nothing_may_have_heard(
    tenant: Tenant, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.notifications.backends.SECONDS", 0.5)
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)
    over = threading.Event()

    def say_nothing(posted: Posted) -> None:
        over.wait(60)

    receiver.answer = say_nothing

    while (
        not receiver.posted
    ):  # a busy machine may take all the time before anything is sent, and then it is tried again
        make_due(tenant)
        deliver_waiting("slack")
    over.set()

    assert states(tenant) == ["unknown"]


def test_a_receiver_that_is_away_has_heard_nothing(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW += ("127.0.0.1:1",)
    channel_of(tenant, "slack", "http://127.0.0.1:1/x")
    raised(tenant)

    deliver_waiting("slack")

    assert states(tenant) == ["pending"]


def test_a_long_answer_is_an_answer(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)
    receiver.answers((200, {}, b"x" * 100_000))

    deliver_waiting("slack")

    assert states(tenant) == ["sent"]


def test_an_address_that_may_not_be_called_any_more_is_not(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    channel_of(tenant, "webhook", receiver.url)
    raised(tenant)
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()

    deliver_waiting("webhook")

    assert (states(tenant), receiver.posted) == (["failed"], [])
    assert "https://" in the_delivery(tenant).last_error


def test_an_error_never_shows_the_secret_part_of_a_target(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)
    receiver.answers((404, {}, f"nothing at {receiver.url}".encode()))

    deliver_waiting("slack")

    assert "/hook" not in the_delivery(tenant).last_error


@pytest.mark.parametrize("change", ["deleted", "switched off", "key lost"])
def test_a_channel_that_is_gone_is_not_used(
    tenant: Tenant, receiver: HttpReceiver, settings: Any, change: str
) -> None:
    channel = channel_of(tenant, "webhook", receiver.url)
    raised(tenant)
    with tenant_scope(tenant.pk):
        if change == "deleted":
            NotificationChannel.objects.filter(pk=channel.pk).delete()
        elif change == "switched off":
            NotificationChannel.objects.filter(pk=channel.pk).update(enabled=False)
        else:
            settings.FIELD_ENCRYPTION_KEYS = ["other:" + "1" * 64]

    deliver_waiting("webhook")

    assert (states(tenant), receiver.posted) == (["failed"], [])


def test_a_mistake_of_ours_holds_up_no_other_alert(
    tenant: Tenant, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant, "breaks")
    raised(tenant, "fine")
    payload = backends.slack_payload

    def broken(message: Any) -> Any:
        return {"text": {1, 2}} if message.title == "breaks" else payload(message)

    monkeypatch.setattr(backends, "slack_payload", broken)

    deliver_waiting("slack")

    assert (states(tenant), len(receiver.posted)) == (["unknown", "sent"], 1)


def test_a_mistake_of_ours_before_anything_is_sent_is_tried_again(
    tenant: Tenant, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)

    def broken(claim: Any) -> Any:
        raise KeyError("kind")

    monkeypatch.setattr(delivery, "_target_of", broken)

    deliver_waiting("slack")

    assert (states(tenant), receiver.posted) == (["pending"], [])
