"""Alerts, deliveries, notification channels and channels in the admin: their pages and actions."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from activities.alerts import raise_alert
from activities.models import Alert, AlertDelivery, NotificationChannel
from activities.notifications import backends
from tenants.context import tenant_scope
from tenants.models import Channel, Tenant
from tests.browsing import list_url, messages_of, page_url, run_action, visible_text


@pytest.fixture(autouse=True)
def no_platform(settings: Any) -> None:
    settings.SLACK_WEBHOOK_URL = settings.ALERT_EMAIL = settings.EMAIL_URL = ""


@pytest.fixture
def mail(tenant: Tenant) -> NotificationChannel:
    channel = NotificationChannel(tenant=tenant, kind="email", name="Ops")
    backends.put_target(channel, "ops@example.com")
    with tenant_scope(tenant.pk):
        channel.save(force_insert=True)
    return channel


@pytest.fixture
def alert(tenant: Tenant, mail: NotificationChannel) -> Alert:
    with tenant_scope(tenant.pk):
        raise_alert(tenant.pk, "dead_letter", "It <b>failed</b>", severity="critical", facts={"attempts": 3})
        return Alert.objects.get()


@pytest.fixture
def ads(tenant: Tenant) -> Channel:
    with tenant_scope(tenant.pk):
        return Channel.objects.create(tenant=tenant, kind="google-ads", name="Ads")


def reloaded(row: Any) -> Any:
    with tenant_scope(row.tenant_id):
        return type(row).objects.get(pk=row.pk)


def test_an_alert_is_displayed_with_its_text_escaped(root: Client, alert: Alert) -> None:
    listed, page = root.get(list_url(Alert)), root.get(page_url(alert))

    assert "It &lt;b&gt;failed&lt;/b&gt;" in listed.content.decode()
    assert "critical" in visible_text(page)
    assert "attempts" in visible_text(page)


def test_an_alert_is_acknowledged_after_a_confirmation(root: Client, alert: Alert) -> None:
    question = run_action(root, Alert, "acknowledge_selected", alert)
    assert reloaded(alert).acknowledged_by == ""

    done = run_action(root, Alert, "acknowledge_selected", alert, confirmed="1")

    assert question.status_code == 200
    assert reloaded(alert).acknowledged_by == "user:root"
    assert messages_of(done) == ["Acknowledged: It <b>failed</b>."]


def test_a_failed_delivery_can_be_sent_again_once(root: Client, alert: Alert) -> None:
    with tenant_scope(alert.tenant_id):
        delivery = AlertDelivery.objects.get()
        AlertDelivery.objects.update(state="failed", last_error="404")

    root.get(f"{list_url(AlertDelivery)}{delivery.pk}/send-again/")
    untouched = reloaded(delivery).state
    run_action(root, AlertDelivery, "send_again_selected", delivery, confirmed="1")
    second = run_action(root, AlertDelivery, "send_again_selected", delivery, confirmed="1")

    assert (untouched, reloaded(delivery).state) == ("failed", "pending")
    assert messages_of(second)[-1] == "Skipped Ops: pending: It is still in progress, or has arrived."


def test_the_target_of_a_new_notification_channel_is_never_displayed(root: Client, tenant: Tenant) -> None:
    form = {
        "tenant": str(tenant.pk),
        "kind": "email",
        "name": "Ops",
        "enabled": "on",
        "kinds": ["dead_letter"],
    }

    refused = root.post(f"{list_url(NotificationChannel)}add/", {**form, "new_target": "nobody"})
    missing = root.post(f"{list_url(NotificationChannel)}add/", form)
    created = root.post(f"{list_url(NotificationChannel)}add/", {**form, "new_target": "ops@example.com"})

    assert "is not an email address" in visible_text(refused)
    assert "Enter the target of the alerts" in visible_text(missing)
    assert created.status_code == 302
    with tenant_scope(tenant.pk):
        channel = NotificationChannel.objects.get()
    assert (channel.kinds, channel.target_shown, backends.open_target(channel).address) == (
        ["dead_letter"],
        "o…@example.com",
        "ops@example.com",
    )
    page = root.get(page_url(channel)).content.decode()
    assert "ops@example.com" not in page
    assert channel.target_sealed not in page


def test_the_target_of_a_notification_channel_is_kept_or_replaced(
    root: Client, mail: NotificationChannel
) -> None:
    fields = {"name": "Renamed", "enabled": "on"}

    root.post(page_url(mail), fields)
    renamed = reloaded(mail)
    root.post(page_url(mail), {**fields, "new_target": "lead@example.org"})

    assert (renamed.name, renamed.version, backends.open_target(renamed).address) == (
        "Renamed",
        2,
        "ops@example.com",
    )
    assert backends.open_target(reloaded(mail)).address == "lead@example.org"


def test_a_test_alert_is_sent_only_to_an_enabled_channel(root: Client, mail: NotificationChannel) -> None:
    run_action(root, NotificationChannel, "test_selected", mail, confirmed="1")
    with tenant_scope(mail.tenant_id):
        NotificationChannel.objects.update(enabled=False)
    skipped = run_action(root, NotificationChannel, "test_selected", mail, confirmed="1")

    with tenant_scope(mail.tenant_id):
        assert [alert.kind for alert in Alert.objects.all()] == ["test"]
        assert AlertDelivery.objects.get().channel_id == mail.pk
    assert messages_of(skipped)[-1] == "Skipped Ops (email): The channel is switched off."


def test_a_channel_can_be_expired_reactivated_and_disabled(root: Client, ads: Channel) -> None:
    run_action(root, Channel, "expire_selected", ads, confirmed="1")
    expired, page = reloaded(ads).status, visible_text(root.get(page_url(ads)))
    run_action(root, Channel, "reactivate_selected", ads, confirmed="1")
    active = reloaded(ads).status
    run_action(root, Channel, "disable_selected", ads, confirmed="1")

    assert (expired, active, reloaded(ads).status) == ("expired", "active", "disabled")
    assert "expired" in page
    with tenant_scope(ads.tenant_id):
        assert Alert.objects.filter(kind="channel_expired").count() == 1


def test_the_form_cannot_change_the_status_of_a_channel(root: Client, ads: Channel) -> None:
    answer = root.post(
        page_url(ads),
        {
            "kind": "google-ads",
            "name": "Renamed",
            "status": "expired",
            "details": "{}",
            "expires_at_0": "",
            "expires_at_1": "",
        },
    )

    assert answer.status_code == 302
    channel = reloaded(ads)
    assert (channel.name, channel.status, channel.version) == ("Renamed", "active", 2)
