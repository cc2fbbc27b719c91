"""Notification channels over the API: targets are never returned; channels are created, changed, tested and removed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from activities.models import AlertDelivery, NotificationChannel
from activities.notifications import backends
from activities.notifications.delivery import deliver_waiting
from agents import webhook_signing
from tenants.context import tenant_scope
from tenants.models import IdempotentRequest, Tenant
from tests.answers import problem, version_of
from tests.cases import in_one_test
from tests.integration.alerts_api.raising import ALERTS, CHANNELS, MAIL, make_alert, make_channel
from tests.receivers import HttpReceiver, http_receiver


@pytest.fixture
def receiver(settings: Any) -> Iterator[HttpReceiver]:
    with http_receiver() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW += (running.place,)
        yield running


def test_a_target_is_stored_but_never_returned(api: Any, receiver: HttpReceiver) -> None:
    admin = api()

    channel = make_channel(admin, kind="slack", target=f"{receiver.url}/T000/B000/secret")
    mail = make_channel(admin, name="Mail", target="ops@example.com, lead@example.org")

    assert channel["target"] == receiver.place
    assert mail["target"] == "o…@example.com, l…@example.org"
    everything = b"".join(admin.get(place).content for place in (CHANNELS, f"{CHANNELS}{channel['id']}/"))
    assert b"secret" not in everything
    assert b"ops@" not in everything


def test_a_target_is_sealed_for_its_own_channel(api: Any, tenant: Tenant) -> None:
    first, second = make_channel(api(), name="first"), make_channel(api(), name="second")
    with tenant_scope(tenant.pk):
        one, two = (NotificationChannel.objects.get(pk=channel["id"]) for channel in (first, second))
        NotificationChannel.objects.filter(pk=two.pk).update(target_sealed=one.target_sealed)
        assert "ops@example.com" not in one.target_sealed
        make_alert(tenant)

    deliver_waiting("email")

    with tenant_scope(tenant.pk):
        moved = AlertDelivery.objects.get(channel_id=two.pk)
    assert "encrypted for another row" in moved.last_error


def test_the_secret_of_a_webhook_is_returned_once(api: Any, tenant: Tenant, receiver: HttpReceiver) -> None:
    admin, body = api(), {**MAIL, "kind": "webhook", "target": receiver.url}
    key = {"Idempotency-Key": "one"}

    first = admin.post(CHANNELS, body, format="json", headers=key)
    again = admin.post(CHANNELS, body, format="json", headers=key)

    assert webhook_signing.sign(message_id="1", body=b"", secrets=[first.json()["secret"]])
    assert again.json() == {**first.json(), "secret": None}
    with tenant_scope(tenant.pk):
        assert first.json()["secret"] not in bytes(IdempotentRequest.objects.get().body).decode()
    assert "secret" not in admin.get(f"{CHANNELS}{first.json()['id']}/").json()
    make_alert(tenant)
    deliver_waiting("webhook")
    (posted,) = receiver.posted
    assert webhook_signing.verify(headers=posted.headers, body=posted.body, secrets=[first.json()["secret"]])


def test_a_repeated_request_gets_its_first_response_although_the_target_is_no_longer_allowed(
    api: Any, receiver: HttpReceiver, settings: Any
) -> None:
    client, key = api(), {"Idempotency-Key": "once"}
    body = {"name": "ours", "kind": "webhook", "target": receiver.url}
    first = client.post(CHANNELS, body, format="json", headers=key)
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()

    again = client.post(CHANNELS, body, format="json", headers=key)
    refused = client.post(CHANNELS, {**body, "name": "other"}, format="json")

    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "target")


def test_the_old_secret_stays_valid_for_a_while_after_a_renewal(
    api: Any, tenant: Tenant, receiver: HttpReceiver
) -> None:
    admin = api()
    channel = make_channel(admin, kind="webhook", target=receiver.url)
    place = f"{CHANNELS}{channel['id']}/"

    renewed = admin.post(f"{place}renew-secret/").json()

    assert (renewed["version"], renewed["secret"] == channel["secret"]) == (2, False)
    make_alert(tenant)
    deliver_waiting("webhook")
    (posted,) = receiver.posted
    for secret in (channel["secret"], renewed["secret"]):
        assert webhook_signing.verify(headers=posted.headers, body=posted.body, secrets=[secret])
    mail = make_channel(admin, name="Mail")
    assert mail["secret"] is None
    problem(admin.post(f"{CHANNELS}{mail['id']}/renew-secret/"), 409, "not_a_webhook")


@in_one_test(
    ("kind", "target"),
    [
        ("slack", "http://hooks.example.com/x"),
        ("slack", "https://127.0.0.1/x"),
        ("webhook", "https://169.254.169.254/latest/meta-data"),
        ("webhook", "https://[::1]/x"),
        ("webhook", "ops@example.com"),
        ("email", "https://example.com"),
        ("email", "ops@example.com, nobody"),
        ("email", "ops@example.com\nBcc: all@example.com"),
        ("email", ", ,"),
        ("email", ",".join(f"a{number}@example.com" for number in range(21))),
    ],
)
def test_an_invalid_target_is_refused(api: Any, kind: str, target: str) -> None:
    refused = problem(
        api().post(CHANNELS, {**MAIL, "kind": kind, "target": target}, format="json"),
        400,
        "validation_failed",
    )

    assert [fault["path"] for fault in refused["errors"]] == ["target"]


def test_an_invalid_target_is_named_with_the_other_errors(api: Any) -> None:
    body = {"kind": "webhook", "name": "", "target": "https://10.0.0.1/", "digest": "daily"}

    refused = problem(api().post(CHANNELS, body, format="json"), 400, "validation_failed")

    assert {fault["path"] for fault in refused["errors"]} == {"name", "target", "digest"}


def test_every_error_of_a_notification_channel_is_named(api: Any) -> None:
    body = {
        "kind": "pigeon",
        "name": "",
        "kinds": ["dead_letter", "dead_leter"],
        "enabled": "yes",
        "secret": "x",
    }

    refused = problem(api().post(CHANNELS, body, format="json"), 400, "validation_failed")

    assert {fault["path"] for fault in refused["errors"]} == {
        "kind",
        "name",
        "target",
        "kinds[1]",
        "enabled",
        "secret",
    }


def test_a_change_keeps_the_target_unless_there_is_a_new_one(api: Any, tenant: Tenant) -> None:
    admin = api()
    place = f"{CHANNELS}{make_channel(admin, kinds=['dead_letter'], enabled=False)['id']}/"

    renamed = admin.put(place, {"name": "Renamed"}, format="json", headers={"If-Match": '"1"'})
    new = admin.put(place, {"name": "Renamed", "target": "lead@example.org"}, format="json")

    assert renamed.json() | {"created_at": "", "id": ""} == {
        "id": "", "kind": "email", "name": "Renamed", "target": "o…@example.com", "kinds": [], "enabled": True, "version": 2,
        "digest": "off", "digest_hour": None, "digest_day": None, "digest_roles": [], "created_at": "",
    }  # fmt: skip
    assert (new.json()["target"], version_of(new)) == ("l…@example.org", "3")
    with tenant_scope(tenant.pk):
        assert backends.open_target(NotificationChannel.objects.get()).address == "lead@example.org"
    problem(
        admin.put(place, {"name": "x"}, format="json", headers={"If-Match": '"1"'}),
        412,
        "precondition_failed",
    )
    problem(admin.put(place, {"name": "x", "target": "nobody"}, format="json"), 400, "validation_failed")
    problem(admin.put(place, {"name": "x", "kind": "slack"}, format="json"), 400, "validation_failed")


def test_channels_are_listed_and_can_be_filtered(api: Any) -> None:
    admin = api()
    for name, enabled in (("on", True), ("off", False)):
        make_channel(admin, name=name, enabled=enabled)

    def names(query: str) -> list[str]:
        return [channel["name"] for channel in admin.get(f"{CHANNELS}?{query}").json()["results"]]

    assert names("") == ["off", "on"]
    assert names("ordering=-name") == ["on", "off"]
    assert (names("enabled=true"), names("enabled=false"), names("kind=slack")) == (["on"], ["off"], [])
    problem(admin.get(f"{CHANNELS}?enabled=perhaps"), 400, "validation_failed")
    problem(admin.get(f"{CHANNELS}?kind=pigeon"), 400, "validation_failed")


def test_the_name_of_a_channel_is_unique_within_its_tenant(api: Any, other_tenant: Tenant) -> None:
    admin = api()
    make_channel(admin)
    other = make_channel(admin, name="Other")

    problem(admin.post(CHANNELS, MAIL, format="json"), 409, "already_exists")
    problem(admin.put(f"{CHANNELS}{other['id']}/", {"name": "Ops"}, format="json"), 409, "already_exists")
    make_channel(api(tenant=other_tenant))


def test_a_channel_whose_encryption_key_is_lost_accepts_a_new_target_and_secret(
    api: Any, tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    admin = api()
    place = f"{CHANNELS}{make_channel(admin, kind='webhook', target=receiver.url)['id']}/"
    settings.FIELD_ENCRYPTION_KEYS = ["other:" + "1" * 64]

    problem(admin.post(f"{place}renew-secret/"), 409, "target_unreadable")
    put = admin.put(place, {"name": "Ops", "target": receiver.url}, format="json")
    secret = admin.post(f"{place}renew-secret/").json()["secret"]

    assert put.status_code == 200
    make_alert(tenant)
    deliver_waiting("webhook")
    (posted,) = receiver.posted
    assert webhook_signing.verify(headers=posted.headers, body=posted.body, secrets=[secret])


def test_the_number_of_notification_channels_is_limited(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.api.alerts.MOST_CHANNELS", 2)
    admin = api()
    make_channel(admin, name="first")
    make_channel(admin, name="second")

    problem(admin.post(CHANNELS, MAIL, format="json"), 409, "too_many_notification_channels")


def test_a_removed_channel_receives_nothing_more(api: Any, tenant: Tenant) -> None:
    admin = api()
    place = f"{CHANNELS}{make_channel(admin)['id']}/"
    make_alert(tenant)

    assert admin.delete(place, headers={"If-Match": '"1"'}).status_code == 204

    problem(admin.get(place), 404, "not_found")
    deliver_waiting("email")
    with tenant_scope(tenant.pk):
        delivery = AlertDelivery.objects.get()
    assert (delivery.state, delivery.channel_name) == ("failed", "Ops")


def test_a_test_is_sent_to_the_tested_channel_only(
    api: Any, tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.SLACK_WEBHOOK_URL = f"{receiver.url}/platform"
    admin = api(name="ann")
    tested = make_channel(
        admin, name="tried", kind="slack", target=f"{receiver.url}/tried", kinds=["plan_invalid"]
    )
    make_channel(admin, name="other", kind="slack", target=f"{receiver.url}/other")

    answer = admin.post(f"{CHANNELS}{tested['id']}/test/")
    deliver_waiting("slack")

    assert (answer.status_code, answer.json()["deliveries"][0]["state"]) == (202, "pending")
    assert [posted.path for posted in receiver.posted] == ["/hook/tried"]
    assert "A test of the channel tried" in receiver.posted[0].json["text"]
    alert = admin.get(f"{ALERTS}{answer.json()['id']}/").json()
    assert (alert["kind"], alert["deliveries"][0]["state"]) == ("test", "sent")


def test_a_disabled_channel_cannot_be_tested(api: Any) -> None:
    admin = api()

    problem(
        admin.post(f"{CHANNELS}{make_channel(admin, enabled=False)['id']}/test/"),
        409,
        "notification_channel_off",
    )


def test_a_repeated_test_is_sent_once(api: Any, tenant: Tenant) -> None:
    admin = api()
    place = f"{CHANNELS}{make_channel(admin)['id']}/test/"

    answers = [admin.post(place, headers={"Idempotency-Key": "one"}) for _ in range(3)]

    assert {answer.status_code for answer in answers} == {202}
    with tenant_scope(tenant.pk):
        assert AlertDelivery.objects.count() == 1


@pytest.mark.parametrize("role", ["viewer", "reviewer", "operator"])
def test_only_admins_change_notification_channels(api: Any, role: str) -> None:
    place = f"{CHANNELS}{make_channel(api())['id']}/"
    client = api(role)

    assert client.get(place).status_code == 200
    problem(client.post(CHANNELS, MAIL, format="json"), 403, "forbidden")
    problem(client.put(place, {"name": "x"}, format="json"), 403, "forbidden")
    problem(client.delete(place), 403, "forbidden")
    problem(client.post(f"{place}test/"), 403, "forbidden")
    problem(client.post(f"{place}renew-secret/"), 403, "forbidden")
