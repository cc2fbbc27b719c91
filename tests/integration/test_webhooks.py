"""Deliveries of webhooks to a real receiver: signatures, retries, leases, and fairness while receivers fail."""

from __future__ import annotations

import base64
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
import pytest
import standardwebhooks
from django.db import connections, transaction
from django.db.models import F
from django.utils import timezone

from activities import background_tasks
from activities.alerts import raise_alert
from activities.exceptions import ActivityError
from activities.models import Alert
from activities.models.alert import AlertKind
from activities.notifications import webhooks
from activities.notifications.webhooks import Outcome, claim_delivery, deliver, deliver_waiting
from tenants import redis
from tenants.context import SYSTEM, system_scope, tenant_scope
from tenants.events import log
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tenants.models.events import WebhookDelivery, WebhookEndpoint
from tests.engine import Engine, in_another_thread, simultaneously
from tests.receivers import HttpReceiver, Posted
from tests.upkeep import run_task


def webhook(tenant: Tenant, url: str, **fields: Any) -> tuple[WebhookEndpoint, str]:
    """A webhook and its secret."""
    endpoint = WebhookEndpoint(tenant=tenant, url=url, **fields)
    secret = webhooks.renew_secret(endpoint)
    with tenant_scope(tenant.pk):
        endpoint.save(force_insert=True)
    return endpoint, secret


def raise_events(tenant: Tenant, count: int = 1) -> None:
    with tenant_scope(tenant.pk):
        for _ in range(count):
            raise_alert(tenant.pk, AlertKind.TEST, "Something", platform=False)
    log.number(tenant.pk)


def deliveries(tenant: Tenant, **which: Any) -> list[WebhookDelivery]:
    with tenant_scope(tenant.pk):
        return list(WebhookDelivery.objects.filter(**which).order_by("event_number"))


def stored(endpoint: WebhookEndpoint) -> WebhookEndpoint:
    with tenant_scope(endpoint.tenant_id):
        return WebhookEndpoint.objects.get(pk=endpoint.pk)


def make_due(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        WebhookDelivery.objects.filter(state="pending").update(next_attempt_at=timezone.now())
        WebhookEndpoint.objects.update(paused_until=None)


def send_all() -> int:
    return deliver_waiting(troubled=False) + deliver_waiting(troubled=True)


def test_an_event_arrives_signed_as_the_public_library_verifies_it(
    engine: Engine, tenant: Tenant, receiver: HttpReceiver
) -> None:
    _, secret = webhook(tenant, receiver.url, kinds=["activity.created", "dead_letter"])
    before = uuid7()
    engine.serve(tenant)
    [activity] = engine.submit(tenant)
    engine.drain()
    log.number(tenant.pk)

    assert send_all() == 1

    [posted] = receiver.posted
    body = standardwebhooks.Webhook(secret).verify(posted.body, posted.headers)
    [sent] = deliveries(tenant)
    assert (body["type"], body["data"]["activity"], body["data"]["id"]) == (
        "activity.created",
        str(activity),
        1,
    )
    assert body["data"]["status"] == "created"
    assert posted.headers["webhook-id"] == str(sent.id)
    assert (sent.id.version, sent.id > before) == (7, True)
    assert (sent.state, sent.attempts, sent.response_status, sent.error) == ("delivered", 1, 200, "")
    assert sent.duration_ms is not None
    assert send_all() == 0


def test_the_leader_announces_waiting_deliveries_and_a_worker_of_the_queue_sends_them(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    webhook(tenant, receiver.url)
    with tenant_scope(tenant.pk):
        raise_alert(tenant.pk, AlertKind.TEST, "Something", platform=False)
    log.number_all()

    assert "webhooks" in background_tasks.Reminder().remind()
    message = orjson.loads(redis.client().rpop("webhook-outbound"))
    assert message["headers"]["task"] == "webhooks.deliver"
    run_task("webhooks.deliver", **orjson.loads(base64.b64decode(message["body"]))[1])

    assert [posted.json["type"] for posted in receiver.posted] == ["alert.raised"]


def test_a_forged_body_or_a_wrong_secret_fails_verification(tenant: Tenant, receiver: HttpReceiver) -> None:
    _, secret = webhook(tenant, receiver.url)
    _, other = webhook(tenant, receiver.url, enabled=False)
    raise_events(tenant)
    send_all()
    [posted] = receiver.posted

    for body, key in ((posted.body + b" ", secret), (posted.body, other)):
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(key).verify(body, posted.headers)


def test_both_secrets_sign_for_a_day_after_a_rotation(tenant: Tenant, receiver: HttpReceiver) -> None:
    endpoint, first = webhook(tenant, receiver.url)
    second = webhooks.renew_secret(endpoint)
    with tenant_scope(tenant.pk):
        endpoint.save()
    raise_events(tenant)
    send_all()
    with tenant_scope(tenant.pk):
        WebhookEndpoint.objects.update(previous_until=F("previous_until") - timedelta(hours=24, seconds=1))
    raise_events(tenant)
    send_all()

    during, after = receiver.posted
    for secret in (first, second):
        standardwebhooks.Webhook(secret).verify(during.body, during.headers)
    standardwebhooks.Webhook(second).verify(after.body, after.headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(first).verify(after.body, after.headers)


def test_a_delivery_is_tried_ten_times_with_growing_pauses_under_one_id(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    receiver.answer_with((500, {}, b"no\x00 <b>room</b>"))
    endpoint, _ = webhook(tenant, receiver.url)
    raise_events(tenant)
    waits = []

    for _ in range(10):
        make_due(tenant)
        began = timezone.now()
        assert send_all() == 1
        [tried] = deliveries(tenant)
        waits.append((tried.next_attempt_at - began).total_seconds())

    assert [round(wait / 5) * 5 for wait in waits[:9]] == [
        5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400,
    ]  # fmt: skip
    assert (tried.state, tried.attempts, tried.response_status) == ("failed", 10, 500)
    assert tried.error == "The receiver answered with status 500: no <b>room</b>"
    assert len({posted.headers["webhook-id"] for posted in receiver.posted}) == 1
    endpoint = stored(endpoint)
    assert endpoint.failures == 10
    assert endpoint.paused_until <= began + timedelta(seconds=webhooks.LONGEST_PAUSE + 60), "not for 2 ** 9 s"
    make_due(tenant)
    assert send_all() == 0


@pytest.mark.parametrize("status", [301, 302, 400, 401, 404, 429, 503])
def test_every_status_but_success_is_tried_again(tenant: Tenant, receiver: HttpReceiver, status: int) -> None:
    receiver.answer_with(
        (status, {"Location": receiver.url + "/elsewhere", "Retry-After": "90"}, b""), (204, {}, b"")
    )
    endpoint, _ = webhook(tenant, receiver.url)
    raise_events(tenant)
    began = timezone.now()
    send_all()
    [tried] = deliveries(tenant)
    assert (tried.state, tried.response_status, len(receiver.posted)) == ("pending", status, 1)
    assert (tried.next_attempt_at - began).total_seconds() >= 90, "as the receiver asked"
    assert stored(endpoint).failing_since is not None
    assert stored(endpoint).paused_until >= began + timedelta(seconds=90), "for other events as well"

    make_due(tenant)
    send_all()

    assert deliveries(tenant)[0].state == "delivered"
    assert (stored(endpoint).failures, stored(endpoint).failing_since) == (0, None)


def test_status_410_disables_the_webhook_at_once_and_raises_an_alert(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    receiver.answer_with((410, {}, b""))
    endpoint, _ = webhook(tenant, receiver.url, kinds=["alert.raised"])
    raise_events(tenant, 3)

    send_all()

    assert (stored(endpoint).enabled, stored(endpoint).off_reason) == (False, "gone")
    assert [one.state for one in deliveries(tenant)] == ["failed", "dropped", "dropped"]
    with tenant_scope(tenant.pk):
        alert = Alert.objects.get(kind="webhook_off")
    assert alert.facts == {"webhook": str(endpoint.pk), "reason": "gone", "dropped": 2}
    log.number(tenant.pk)
    assert len(deliveries(tenant)) == 3, "no further deliveries are created"


@pytest.mark.parametrize(("status", "state"), [(500, "dropped"), (410, "failed")])
def test_an_attempt_that_fails_after_its_webhook_was_switched_off_is_not_repeated_and_raises_no_second_alert(
    tenant: Tenant, receiver: HttpReceiver, status: int, state: str
) -> None:
    endpoint, _ = webhook(tenant, receiver.url, kinds=["alert.raised"])
    raise_events(tenant, 2)
    first, second = claim_delivery(endpoint.pk), claim_delivery(endpoint.pk)

    webhooks.record_outcome(first, Outcome(False, 410, 1, "gone"))
    webhooks.record_outcome(second, Outcome(False, status, 1, "broken"))

    assert [one.state for one in deliveries(tenant)] == ["failed", state]
    with tenant_scope(tenant.pk):
        assert Alert.objects.filter(kind="webhook_off").count() == 1


def test_an_attempt_that_fails_after_a_person_switched_its_webhook_off_waits_until_it_is_on_again(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    endpoint, _ = webhook(tenant, receiver.url)
    raise_events(tenant)
    claim = claim_delivery(endpoint.pk)
    with tenant_scope(tenant.pk):
        WebhookEndpoint.objects.update(enabled=False)

    webhooks.record_outcome(claim, Outcome(False, 500, 1, "broken"))

    make_due(tenant)
    assert [one.state for one in deliveries(tenant)] == ["pending"]
    assert claim_delivery(endpoint.pk) is None, "a disabled webhook is not called"


def test_a_delivery_whose_event_is_no_longer_stored_fails_at_once_and_not_because_of_its_receiver(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    endpoint, _ = webhook(tenant, receiver.url)
    raise_events(tenant)
    with tenant_scope(tenant.pk):
        WebhookDelivery.objects.update(event_number=F("event_number") + 100)

    send_all()

    [failed] = deliveries(tenant)
    assert (failed.state, failed.error, receiver.posted) == ("failed", webhooks.NOT_KEPT, [])
    assert (stored(endpoint).failures, stored(endpoint).paused_until) == (0, None)
    with tenant_scope(tenant.pk), pytest.raises(ActivityError, match="no longer kept"):
        webhooks.send_again(endpoint, failed.pk)


@pytest.mark.parametrize(
    ("headers", "body"), [({}, b"x" * (webhooks.MOST_BYTES + 1)), ({"Content-Encoding": "gzip"}, b"\x1f\x8b")]
)
def test_an_event_is_delivered_by_the_status_of_an_answer_whose_body_cannot_be_read(
    tenant: Tenant, receiver: HttpReceiver, headers: dict[str, str], body: bytes
) -> None:
    receiver.answer_with((201, headers, body))
    webhook(tenant, receiver.url)
    raise_events(tenant)

    send_all()

    assert [(one.state, one.response_status) for one in deliveries(tenant)] == [("delivered", 201)]


@pytest.mark.parametrize("status", [410, 500])
def test_a_failure_at_an_address_that_was_replaced_meanwhile_does_not_count_against_the_new_one(
    tenant: Tenant, receiver: HttpReceiver, status: int
) -> None:
    endpoint, _ = webhook(tenant, "https://moved.example.com/", kinds=["alert.raised"])
    raise_events(tenant)
    claim = claim_delivery(endpoint.pk)
    with tenant_scope(tenant.pk):
        WebhookEndpoint.objects.update(url=receiver.url)

    webhooks.record_outcome(claim, Outcome(False, status, 1, "moved"))

    assert (stored(endpoint).enabled, stored(endpoint).failures) == (True, 0)
    make_due(tenant)
    send_all()
    assert [one.state for one in deliveries(tenant)] == ["delivered"]


def test_five_days_without_a_success_disable_the_webhook_with_one_alert(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    receiver.answer_with((500, {}, b""))
    endpoint, _ = webhook(tenant, receiver.url)
    raise_events(tenant, 2)
    send_all()
    assert stored(endpoint).enabled
    with tenant_scope(tenant.pk):
        WebhookEndpoint.objects.update(failing_since=timezone.now() - timedelta(days=5, seconds=1))

    make_due(tenant)
    send_all()

    assert (stored(endpoint).enabled, stored(endpoint).off_reason) == (False, "failing")
    with tenant_scope(tenant.pk):
        assert Alert.objects.filter(kind="webhook_off").count() == 1


def test_a_delivery_whose_sender_died_is_sent_again_under_the_same_id(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    endpoint, _ = webhook(tenant, receiver.url)
    raise_events(tenant)
    dead = claim_delivery(endpoint.pk)
    assert send_all() == 0, "another sender has claimed it"
    [claimed] = deliveries(tenant)
    assert claimed.next_attempt_at <= timezone.now() + timedelta(seconds=30), "as long as for a lost worker"
    with tenant_scope(tenant.pk):
        WebhookDelivery.objects.update(next_attempt_at=timezone.now())

    assert send_all() == 1
    [sent] = deliveries(tenant)
    deliver(dead)  # its sender was only slow

    assert [one.headers["webhook-id"] for one in receiver.posted] == [str(sent.id)] * 2
    assert (sent.state, sent.attempts, sent.fence) == ("delivered", 2, 2)
    assert deliveries(tenant)[0].attempts == 2


def test_the_late_outcome_of_a_superseded_sender_changes_nothing(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    endpoint, _ = webhook(tenant, receiver.url)
    raise_events(tenant)
    dead = claim_delivery(endpoint.pk)
    with tenant_scope(tenant.pk):
        WebhookDelivery.objects.update(next_attempt_at=timezone.now())
    claim_delivery(endpoint.pk)

    webhooks.record_outcome(dead, webhooks.Outcome(False, 500, 1, "late"))

    assert (deliveries(tenant)[0].state, deliveries(tenant)[0].error) == ("sending", "")
    assert stored(endpoint).failures == 0


def test_ten_senders_at_once_send_each_event_once_within_the_limit_of_the_webhook(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_WEBHOOK_LANE = 1
    lock, sending, most = threading.Lock(), [0], [0]

    def answer(posted: Posted) -> Any:
        with lock:
            sending[0] += 1
            most[0] = max(most[0], sending[0])
        threading.Event().wait(0.01)
        with lock:
            sending[0] -= 1
        return 200, {}, b""

    receiver.answer = answer
    webhook(tenant, receiver.url)
    raise_events(tenant, 20)

    simultaneously(*[lambda: deliver_waiting(troubled=False)] * 10)
    send_all()

    assert len({posted.headers["webhook-id"] for posted in receiver.posted}) == len(receiver.posted) == 20
    assert most[0] == 1
    assert {one.state for one in deliveries(tenant)} == {"delivered"}


def test_a_dead_receiver_with_many_events_delays_no_other_webhook(
    tenant: Tenant, other_tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW += ("127.0.0.1:1",)
    dead, _ = webhook(tenant, "http://127.0.0.1:1/hook")
    webhook(other_tenant, receiver.url)
    raise_events(tenant, 500)
    raise_events(other_tenant, 5)

    tried = deliver_waiting(troubled=False)

    assert (tried, len(receiver.posted)) == (6, 5), "one attempt at the dead receiver, then a pause"
    assert stored(dead).failures == 1
    assert deliver_waiting(troubled=True) == 0, "not before its pause is over"
    assert not webhooks.deliveries_waiting(troubled=False).exists()
    with tenant_scope(tenant.pk):
        WebhookEndpoint.objects.update(paused_until=None)
    assert deliver_waiting(troubled=True) == 1
    pause = stored(dead).paused_until - timezone.now()  # type: ignore[operator]
    assert 1 < pause.total_seconds() <= 2


def test_slow_receivers_delay_only_their_own_tenant(
    tenant: Tenant, other_tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    """Fifty receivers answer only after an event of another tenant has arrived, so a sender that waits for them first fails."""
    settings.ORCHESTRATOR_DELIVERY_TENANT_LANE = 5
    arrived, slow, under_way = threading.Event(), threading.Event(), list[int]()

    def answer(posted: Posted) -> Any:
        if posted.path.endswith("/quick"):
            arrived.set()
        else:
            under_way.append(len(deliveries(tenant, state="sending")))
            connections.close_all()
            slow.set()
            assert arrived.wait(60)
        return 200, {}, b""

    receiver.answer = answer
    for number in range(50):
        webhook(tenant, f"{receiver.url}/{number}")
    webhook(other_tenant, f"{receiver.url}/quick")
    raise_events(tenant)

    def send_event_of_the_other() -> None:
        assert slow.wait(60)
        raise_events(other_tenant)

    simultaneously(send_event_of_the_other, *[lambda: deliver_waiting(troubled=False)] * 2)

    assert arrived.is_set()
    assert len(receiver.posted) == 51
    assert max(under_way) == 5, "all senders together keep to the limit of a tenant"
    assert {one.state for one in deliveries(tenant)} == {"delivered"}


def test_hanging_receivers_leave_room_for_other_webhooks_of_their_tenant(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_DELIVERY_TENANT_LANE = 3
    hanging = [webhook(tenant, f"{receiver.url}/{number}")[0] for number in range(2)]
    raise_events(tenant, 2)
    for endpoint in hanging:
        assert claim_delivery(endpoint.pk) is not None
    webhook(tenant, f"{receiver.url}/quick")
    raise_events(tenant)

    deliver_waiting(troubled=False, limit=1)

    assert [posted.path for posted in receiver.posted] == ["/hook/quick"]


def count_claims(*endpoints: WebhookEndpoint) -> int:
    """How many of six claims per webhook succeed. They skip the list of waiting webhooks, so each must check the limits itself."""
    return sum(claim_delivery(endpoint.pk) is not None for _ in range(6) for endpoint in endpoints)


def test_a_claim_itself_checks_every_limit_on_deliveries_in_progress(
    tenant: Tenant,
    other_tenant: Tenant,
    receiver: HttpReceiver,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.ORCHESTRATOR_WEBHOOK_LANE, settings.ORCHESTRATOR_DELIVERY_TENANT_LANE = 2, 3
    monkeypatch.setattr(webhooks, "TROUBLED_AT_ONCE", 1)
    mine = [webhook(tenant, f"{receiver.url}/{number}")[0] for number in range(2)]
    raise_events(tenant, 6)
    theirs = [webhook(other_tenant, f"{receiver.url}/{number}")[0] for number in range(2)]
    raise_events(other_tenant, 6)

    assert count_claims(mine[0]) == 2, "of one webhook"
    assert count_claims(mine[1]) == 1, "of one tenant"
    with tenant_scope(other_tenant.pk):
        WebhookEndpoint.objects.update(failures=1)
    assert count_claims(*theirs) == 1, "of all failing webhooks"
    monkeypatch.setattr(webhooks, "TROUBLED_AT_ONCE", 16)
    assert count_claims(*theirs) == 1, "of each failing webhook, one of which has one"


def test_a_hanging_receiver_gets_no_second_call_meanwhile(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_WEBHOOK_LANE = 4
    endpoint, _ = webhook(tenant, receiver.url)
    raise_events(tenant, 6)
    assert claim_delivery(endpoint.pk) is not None
    lease = settings.ORCHESTRATOR_WEBHOOK_TIMEOUT_SECONDS + webhooks.LEASE_SECONDS
    with tenant_scope(tenant.pk):
        hangs_since = timezone.now() - timedelta(seconds=webhooks.HANGING_SECONDS + 1)
        WebhookDelivery.objects.filter(state="sending").update(
            next_attempt_at=hangs_since + timedelta(seconds=lease)
        )

    assert count_claims(endpoint) == 0


def test_a_webhook_that_is_paused_or_being_claimed_is_not_claimed(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    endpoint, _ = webhook(tenant, receiver.url)
    other, _ = webhook(tenant, f"{receiver.url}/other")
    raise_events(tenant)
    with tenant_scope(tenant.pk):
        WebhookEndpoint.objects.filter(pk=endpoint.pk).update(
            paused_until=timezone.now() + timedelta(hours=1)
        )
    assert count_claims(endpoint) == 0

    make_due(tenant)
    with transaction.atomic(using=SYSTEM):
        assert claim_delivery(other.pk) is not None
        # This transaction still holds the lock of that claim.
        assert in_another_thread(lambda: claim_delivery(endpoint.pk)) is None, (
            "its tenant is locked by the other claim"
        )
    with tenant_scope(tenant.pk):  # as a late sender that records its outcome
        WebhookDelivery.objects.select_for_update().get(endpoint=endpoint)
        assert in_another_thread(lambda: claim_delivery(endpoint.pk)) is None, "its delivery is locked"
    assert claim_delivery(endpoint.pk) is not None


def test_only_webhooks_that_can_be_called_take_turns(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_WEBHOOK_LANE, settings.ORCHESTRATOR_DELIVERY_TENANT_LANE = 1, 2

    def in_turn() -> set[UUID]:
        rows = webhooks._IN_TURN.run({**webhooks._bounds(), "troubled": False}, using=SYSTEM)
        return {row.id for row in rows}

    paused, disabled, first, second, third = (
        webhook(tenant, f"{receiver.url}/{number}")[0].pk for number in range(5)
    )
    raise_events(tenant, 2)
    with tenant_scope(tenant.pk):
        WebhookEndpoint.objects.filter(pk=paused).update(paused_until=timezone.now() + timedelta(hours=1))
        WebhookEndpoint.objects.filter(pk=disabled).update(enabled=False)
    with system_scope():
        waiting = set(webhooks.deliveries_waiting(troubled=False).values_list("pk", flat=True))

    assert waiting == {first, second, third}
    claim_delivery(first)
    assert in_turn() == {second, third}, "the first has as many calls as it may have"
    claim_delivery(second)
    assert in_turn() == set(), "so has the tenant"


def test_a_sender_that_stopped_blocks_failing_webhooks_only_until_its_lease_ends(
    tenant: Tenant,
    other_tenant: Tenant,
    receiver: HttpReceiver,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
) -> None:
    settings.ORCHESTRATOR_DELIVERY_TENANT_LANE = 1
    monkeypatch.setattr(webhooks, "TROUBLED_AT_ONCE", 1)
    stopped, _ = webhook(tenant, f"{receiver.url}/first")
    webhook(other_tenant, f"{receiver.url}/second")
    for owner in (tenant, other_tenant):
        raise_events(owner)
        with tenant_scope(owner.pk):
            WebhookEndpoint.objects.update(failures=1)
    assert claim_delivery(stopped.pk) is not None

    assert deliver_waiting(troubled=True) == 0, "the limit of calls is reached"
    with tenant_scope(tenant.pk):
        WebhookDelivery.objects.update(next_attempt_at=timezone.now())
    assert deliver_waiting(troubled=True) == 2


def test_a_webhook_that_is_deleted_while_events_are_numbered_gets_no_deliveries(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    """Numbering waits for the deletion, and neither fails."""
    endpoint, _ = webhook(tenant, receiver.url)
    with tenant_scope(tenant.pk):
        raise_alert(tenant.pk, AlertKind.TEST, "Something", platform=False)
    removing, go_on = threading.Event(), threading.Event()

    def remove() -> None:
        with tenant_scope(tenant.pk):
            WebhookEndpoint.objects.select_for_update().get().delete()
            removing.set()
            assert go_on.wait(60)

    def number() -> int:
        assert removing.wait(60)
        threading.Timer(0.1, go_on.set).start()
        return log.number(tenant.pk)

    assert simultaneously(remove, number) == [None, 1]
    assert deliveries(tenant, endpoint_id=endpoint.pk) == []


def test_the_address_is_checked_again_before_each_call(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    webhook(tenant, receiver.url)
    raise_events(tenant)

    send_all()

    assert receiver.posted == []
    assert deliveries(tenant)[0].state == "pending"
    assert deliveries(tenant)[0].response_status is None
    assert deliveries(tenant)[0].error == "Only https:// may be called."


def test_only_an_excerpt_without_secrets_is_stored_of_an_answer(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    _, secret = webhook(tenant, receiver.url)
    receiver.answer_with((500, {}, secret.encode() + b" is your secret " + b"x" * 5_000))
    raise_events(tenant)

    send_all()

    [tried] = deliveries(tenant)
    assert len(tried.error) < 500
    assert secret not in tried.error
    assert secret not in stored(WebhookEndpoint(pk=tried.endpoint_id, tenant_id=tenant.pk)).secret_sealed


def test_old_deliveries_are_deleted_with_their_events(tenant: Tenant, receiver: HttpReceiver) -> None:
    webhook(tenant, receiver.url)
    raise_events(tenant, 2)
    send_all()
    raise_events(tenant)
    with tenant_scope(tenant.pk):
        WebhookDelivery.objects.update(created_at=timezone.now() - timedelta(days=8))

    log.purge_logs()

    assert [one.state for one in deliveries(tenant)] == ["pending"]


def test_a_test_event_is_sent_whatever_kinds_the_webhook_selects(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    endpoint, secret = webhook(tenant, receiver.url, kinds=["dead_letter"])
    with tenant_scope(tenant.pk):
        webhooks.send_test(endpoint)

    assert send_all() == 1

    [posted] = receiver.posted
    body = standardwebhooks.Webhook(secret).verify(posted.body, posted.headers)
    assert (body["type"], body["data"]) == ("webhook.test", {"webhook": str(endpoint.pk)})


def test_a_failed_test_event_can_be_sent_again_with_all_attempts_while_its_webhook_is_on(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    endpoint, _ = webhook(tenant, receiver.url)
    with tenant_scope(tenant.pk):
        delivery = webhooks.send_test(endpoint)
        WebhookDelivery.objects.update(state="failed", attempts=10)

        assert webhooks.send_again(endpoint, delivery.pk).attempts == 0
        WebhookDelivery.objects.update(state="failed")
        endpoint.enabled = False
        with pytest.raises(ActivityError, match="switched off"):
            webhooks.send_again(endpoint, delivery.pk)
