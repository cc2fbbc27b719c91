"""Messages of alerts: to Slack, by mail and to webhooks."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from activities.alerts import try_channel
from activities.notifications import backends
from activities.notifications.delivery import deliver_waiting
from agents import webhook_signing
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.integration.alert_delivery.channels import channel_of, make_alert, states, the_delivery
from tests.receivers import HttpReceiver, MailReceiver


def test_a_message_to_slack_contains_the_alert_its_kind_and_tenant(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant, "It failed", body="Three times.", severity="critical")

    assert deliver_waiting("slack") == 1

    (posted,) = receiver.posted
    assert posted.headers["content-type"] == "application/json"
    assert posted.json["text"].splitlines()[:2] == ["[critical] It failed", "Three times."]
    assert "dead_letter, tenant acme" in posted.json["text"]
    assert states(tenant) == ["sent"]
    assert the_delivery(tenant).sent_at is not None


@pytest.mark.parametrize(
    "text",
    [
        "<!channel> look",
        "<https://evil.example|Approve here>",
        "<@U024BE7LH>",
        "@channel @here @all",
        "https://evil.example/steal?x=1",
        "[Approve](https://evil.example)",
        "#general",
        "&lt;!channel&gt;",
    ],
)
def test_text_of_agents_forms_neither_links_nor_mentions_in_slack(
    tenant: Tenant, receiver: HttpReceiver, text: str
) -> None:
    channel_of(tenant, "slack", receiver.url)
    make_alert(tenant, text, body=text)

    deliver_waiting("slack")

    (posted,) = receiver.posted
    sent = posted.json["text"]
    assert not any(mark in sent for mark in ("<", ">", "://", "](", "@c", "@h", "@a", "@U", "#g"))
    assert "&lt;" not in sent or "<" in text or "&amp;lt;" in sent
    assert (posted.json["mrkdwn"], posted.json["parse"], posted.json["link_names"]) == (False, "none", False)


def test_escaped_text_in_slack_stays_readable() -> None:
    assert backends.inert("a < b & c > d, mail me") == "a &lt; b &amp; c &gt; d, mail me"
    assert backends.inert("see https://x.example").replace("\u200b", "") == "see https://x.example"


def test_a_message_to_the_platforms_slack_links_to_the_page_of_the_alert(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.SLACK_WEBHOOK_URL, settings.ORCHESTRATOR_PUBLIC_URL = (
        receiver.url,
        "https://orchestrator.example.com/",
    )
    alert_id = make_alert(tenant)

    deliver_waiting("slack")

    text = receiver.posted[0].json["text"]
    page = reverse("admin:activities_alert_change", args=[alert_id])
    assert text.endswith(f"\n<https://orchestrator.example.com{page}>")


def test_mail_is_plain_text_with_a_message_id(tenant: Tenant, mails: MailReceiver, settings: Any) -> None:
    settings.ORCHESTRATOR_PUBLIC_URL = "https://orchestrator.example.com"
    channel_of(tenant, "email", "ops@example.com, lead@example.com")
    make_alert(tenant, "It failed\r\nBcc: everybody@example.com", body="<b>Three</b> times.")

    assert deliver_waiting("email") == 1

    (mail,) = mails.mails
    assert mail["Subject"] == "[warning] It failed Bcc: everybody@example.com"
    assert mail["Message-ID"] == f"<{the_delivery(tenant).pk}@orchestrator.example.com>"
    assert mail["Bcc"] is None
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail.get_content_type() == "text/plain"
    assert "<b>Three</b> times." in str(mail.get_payload())
    assert mails.recipients == [["ops@example.com", "lead@example.com"]]
    assert states(tenant) == ["sent"]


def test_a_name_of_a_channel_cannot_add_headers_to_a_test_mail(tenant: Tenant, mails: MailReceiver) -> None:
    channel = channel_of(tenant, "email", "ops@example.com", name="Ops\nBcc: everybody@example.com")
    with tenant_scope(tenant.pk):
        try_channel(channel, actor="user:ann")

    deliver_waiting("email")

    (mail,) = mails.mails
    assert mail["Subject"] == "[info] A test of the channel Ops Bcc: everybody@example.com"
    assert mails.recipients == [["ops@example.com"]]


def test_mail_to_the_platform_goes_to_every_address(
    tenant: Tenant, mails: MailReceiver, settings: Any
) -> None:
    settings.ALERT_EMAIL = "ops@example.com,night@example.com"
    make_alert(tenant)

    deliver_waiting("email")

    assert mails.recipients == [["ops@example.com", "night@example.com"]]


def test_a_webhook_is_signed_and_contains_the_alert(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel = channel_of(tenant, "webhook", receiver.url)
    alert_id = make_alert(tenant, facts={"attempts": 3})

    deliver_waiting("webhook")

    (posted,) = receiver.posted
    assert posted.json["type"] == "alert.raised"
    assert posted.json["data"]["id"] == str(alert_id)
    assert posted.json["data"]["facts"] == {"attempts": 3}
    assert posted.json["data"]["tenant"] == "acme"
    assert posted.headers["webhook-id"] == str(the_delivery(tenant).pk)
    assert webhook_signing.verify(
        headers=posted.headers, body=posted.body, secrets=backends.open_target(channel).secrets
    )


def test_the_previous_secret_still_signs_after_a_renewal(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel = channel_of(tenant, "webhook", receiver.url)
    (before,) = backends.open_target(channel).secrets
    new = backends.renew_secret(channel)
    backends.renew_secret(channel)
    newest = backends.open_target(channel).secrets[0]
    with tenant_scope(tenant.pk):
        channel.save()
    make_alert(tenant)

    deliver_waiting("webhook")

    (posted,) = receiver.posted
    good = [
        secret
        for secret in (before, new, newest)
        if webhook_signing.verify(headers=posted.headers, body=posted.body, secrets=[secret])
    ]
    assert good == [new, newest]
