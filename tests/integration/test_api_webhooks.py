"""Webhooks over the API: admins create, change, rotate, test and delete them, and a secret is returned once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import standardwebhooks

from activities.alerts import raise_alert
from activities.management.commands import rotate_credentials
from activities.models.alert import AlertKind
from activities.notifications.webhooks import deliver_waiting
from agents import credentials
from tenants.context import tenant_scope
from tenants.events import log
from tenants.models import Tenant
from tenants.models.events import WebhookEndpoint
from tests.answers import version_of
from tests.cases import in_one_test
from tests.engine import eventually, simultaneously, somebody_waits_for_a_lock
from tests.integration.test_webhooks import deliveries, raise_events, send_all
from tests.receivers import HttpReceiver, http_receiver

HOOKS = "/api/v1/webhooks/"


@pytest.fixture
def receiver(settings: Any, database: None) -> Iterator[HttpReceiver]:
    with http_receiver() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW = (running.place,)
        yield running


@pytest.fixture
def webhook(api: Callable[..., Any], receiver: HttpReceiver) -> dict[str, Any]:
    """Create a webhook and return the answer."""
    answer = api().post(HOOKS, {"url": receiver.url, "kinds": ["alert.raised"], "description": "ours"})
    assert answer.status_code == 201, answer.json()
    return answer.json()


def test_a_new_webhooks_secret_is_returned_once(
    api: Callable[..., Any], webhook: dict[str, Any], tenant: Tenant, receiver: HttpReceiver
) -> None:
    assert webhook["secret"].startswith("whsec_")
    assert (webhook["enabled"], webhook["kinds"], webhook["version"]) == (True, ["alert.raised"], 1)

    read = api().get(f"{HOOKS}{webhook['id']}/")
    listed = api().get(f"{HOOKS}?enabled=true").json()["results"]

    assert "secret" not in read.json()
    assert listed == [read.json()]
    assert version_of(read) == "1"
    raise_events(tenant)
    send_all()
    standardwebhooks.Webhook(webhook["secret"]).verify(receiver.posted[0].body, receiver.posted[0].headers)


def test_a_repeated_request_creates_no_second_webhook_and_returns_no_secret(
    api: Callable[..., Any], receiver: HttpReceiver
) -> None:
    client, key = api(), {"Idempotency-Key": "once"}
    first, second = (client.post(HOOKS, {"url": receiver.url}, headers=key).json() for _ in range(2))

    assert second == {**first, "secret": None}


def test_a_repeated_request_is_answered_even_if_the_address_is_refused_by_now(
    api: Callable[..., Any], receiver: HttpReceiver, settings: Any
) -> None:
    client, body, key = api(), {"url": receiver.url}, {"Idempotency-Key": "once"}
    first = client.post(HOOKS, body, headers=key)
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()

    again, second = client.post(HOOKS, body, headers=key), client.post(HOOKS, body)

    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert (second.status_code, second.json()["errors"][0]["path"]) == (400, "url")


def test_a_change_needs_the_version_that_was_read(
    api: Callable[..., Any], webhook: dict[str, Any], receiver: HttpReceiver
) -> None:
    client, address = api(), f"{HOOKS}{webhook['id']}/"
    body = {"url": receiver.url, "enabled": False}

    changed = client.put(address, body, headers={"If-Match": '"1"'})
    late = client.put(address, body, headers={"If-Match": '"1"'})

    assert (changed.status_code, changed.json()["enabled"], changed.json()["kinds"]) == (200, False, [])
    assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")
    assert client.post(f"{address}test/", {}).json()["code"] == "webhook_off"


def test_rotation_adds_a_second_secret_and_both_sign(
    api: Callable[..., Any], webhook: dict[str, Any], tenant: Tenant, receiver: HttpReceiver
) -> None:
    rotated = api().post(f"{HOOKS}{webhook['id']}/rotate/", {}).json()
    raise_events(tenant)
    send_all()

    assert rotated["secret"] != webhook["secret"]
    assert rotated["previous_secret_until"] is not None
    for secret in (webhook["secret"], rotated["secret"]):
        standardwebhooks.Webhook(secret).verify(receiver.posted[0].body, receiver.posted[0].headers)


def test_a_webhook_whose_secret_can_no_longer_be_read_gets_a_new_one_by_rotation(
    api: Callable[..., Any], webhook: dict[str, Any], tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.FIELD_ENCRYPTION_KEYS = [f"other:{'ab' * 32}"]

    rotated = api().post(f"{HOOKS}{webhook['id']}/rotate/", {})
    raise_events(tenant)
    send_all()

    assert (rotated.status_code, rotated.json()["previous_secret_until"]) == (200, None)
    standardwebhooks.Webhook(rotated.json()["secret"]).verify(
        receiver.posted[0].body, receiver.posted[0].headers
    )


def test_a_test_delivery_is_sent_and_logged(
    api: Callable[..., Any], webhook: dict[str, Any], receiver: HttpReceiver
) -> None:
    receiver.answer_with((500, {}, b"broken"))
    answer = api().post(f"{HOOKS}{webhook['id']}/test/", {})
    deliver_waiting(troubled=False)

    [delivery] = api().get(f"{HOOKS}{webhook['id']}/deliveries/").json()["results"]

    assert answer.status_code == 202
    assert delivery["id"] == answer.json()["id"]
    assert (delivery["kind"], delivery["event"], delivery["state"], delivery["attempts"]) == (
        "webhook.test",
        None,
        "pending",
        1,
    )
    assert (delivery["response_status"], delivery["error"]) == (
        500,
        "The receiver answered with status 500: broken",
    )
    assert delivery["next_attempt_at"] is not None
    assert api().get(f"{HOOKS}{webhook['id']}/deliveries/?state=delivered").json()["results"] == []


def test_an_ended_delivery_can_be_sent_again_with_its_id(
    api: Callable[..., Any], webhook: dict[str, Any], tenant: Tenant, receiver: HttpReceiver
) -> None:
    raise_events(tenant)
    [delivery] = deliveries(tenant)
    again = f"{HOOKS}{webhook['id']}/deliveries/{delivery.pk}/redeliver/"
    early = api().post(again, {})
    send_all()

    answer = api().post(again, {})
    send_all()

    assert (early.status_code, early.json()["code"]) == (409, "delivery_under_way")
    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    assert [posted.headers["webhook-id"] for posted in receiver.posted] == [str(delivery.pk)] * 2
    assert receiver.posted[0].body == receiver.posted[1].body
    assert api().post(f"{HOOKS}{webhook['id']}/deliveries/{uuid4()}/redeliver/", {}).status_code == 404


@in_one_test(
    ("body", "paths"),
    [
        ({}, ["url"]),
        ({"url": "ftp://example.com/"}, ["url"]),
        ({"url": "http://169.254.169.254/latest/meta-data/"}, ["url"]),
        ({"url": "http://127.0.0.1:2/"}, ["url"]),
        ({"url": "http://user:secret@example.com/"}, ["url"]),
        ({"url": "http://127.0.0.1:2/", "kinds": ["activity.creatd"]}, ["kinds[0]", "url"]),
        ({"url": 7, "kinds": ["activity.creatd"], "colour": "red"}, ["colour", "kinds[0]", "url"]),
    ],
)
def test_every_error_of_a_body_is_reported(
    api: Callable[..., Any], receiver: HttpReceiver, body: Any, paths: list[str]
) -> None:
    answer = api().post(HOOKS, body)

    assert answer.status_code == 400
    assert sorted(fault["path"] for fault in answer.json()["errors"]) == paths


def test_only_admins_of_the_tenant_reach_a_webhook(
    api: Callable[..., Any],
    webhook: dict[str, Any],
    tenant: Tenant,
    other_tenant: Tenant,
    receiver: HttpReceiver,
) -> None:
    raise_events(tenant)
    [delivery] = deliveries(tenant)
    address = f"{HOOKS}{webhook['id']}/"
    calls = [
        ("get", address, None), ("put", address, {"url": receiver.url}), ("delete", address, None),
        ("post", f"{address}test/", {}), ("post", f"{address}rotate/", {}), ("get", f"{address}deliveries/", None),
        ("post", f"{address}deliveries/{delivery.pk}/redeliver/", {}),
    ]  # fmt: skip
    theirs, operator = api("admin", tenant=other_tenant), api("operator")

    assert [getattr(theirs, verb)(at, body).status_code for verb, at, body in calls] == [404] * 7
    assert [getattr(operator, verb)(at, body).status_code for verb, at, body in calls] == [403] * 7
    assert theirs.get(HOOKS).json()["results"] == []
    with tenant_scope(tenant.pk):
        assert WebhookEndpoint.objects.get(pk=webhook["id"]).version == 1


def test_the_number_of_webhooks_is_limited_and_a_deleted_one_gets_nothing_more(
    api: Callable[..., Any], webhook: dict[str, Any], tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.ORCHESTRATOR_WEBHOOKS_PER_TENANT = 1
    refused = api().post(HOOKS, {"url": receiver.url})
    raise_events(tenant)

    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_webhooks")
    assert api().delete(f"{HOOKS}{webhook['id']}/").status_code == 204
    assert send_all() == 0
    assert receiver.posted == []


def test_a_test_of_a_webhook_that_is_being_deleted_finds_none(
    api: Callable[..., Any], webhook: dict[str, Any], tenant: Tenant
) -> None:
    client, removing = api(), threading.Event()

    def remove() -> None:
        with tenant_scope(tenant.pk):
            WebhookEndpoint.objects.select_for_update().get().delete()
            removing.set()
            eventually(somebody_waits_for_a_lock)

    def test() -> Any:
        assert removing.wait(60)
        return client.post(f"{HOOKS}{webhook['id']}/test/", {}).status_code

    assert simultaneously(remove, test) == [None, 404]


def test_secrets_are_sealed_again_when_keys_rotate(
    webhook: dict[str, Any], tenant: Tenant, settings: Any
) -> None:
    settings.FIELD_ENCRYPTION_KEYS = [f"newest:{'ab' * 32}", *settings.FIELD_ENCRYPTION_KEYS]
    [address] = [address for address in rotate_credentials.PLACES if address.name == "secrets of webhooks"]

    *_, progress = rotate_credentials.rotate(address)

    assert (progress.total, progress.resealed, progress.unreadable) == (1, 1, [])
    with tenant_scope(tenant.pk):
        assert credentials.is_current(WebhookEndpoint.objects.get().secret_sealed)
    log.number(tenant.pk)


def test_a_webhook_gets_no_events_from_before_it_was_enabled(
    api: Callable[..., Any], tenant: Tenant, receiver: HttpReceiver
) -> None:
    def raise_events() -> None:
        with tenant_scope(tenant.pk):
            raise_alert(tenant.pk, AlertKind.TEST, "Something", platform=False)

    def delivery_count() -> int:
        log.number(tenant.pk)
        return len(deliveries(tenant))

    client, body = api(), {"url": receiver.url}
    raise_events()
    hook = f"{HOOKS}{client.post(HOOKS, body).json()['id']}/"
    assert delivery_count() == 0
    client.put(hook, {**body, "enabled": False})
    raise_events()
    client.put(hook, body)
    assert delivery_count() == 0
    raise_events()
    assert delivery_count() == 1
