"""Mail servers that refuse, break off or are unreachable."""

from __future__ import annotations

from typing import Any

import pytest

from activities.notifications.delivery import deliver_waiting
from tenants.models import Tenant
from tests.integration.alert_delivery.channels import channel_of, make_alert, make_due, states, the_delivery
from tests.receivers import MailReceiver


@pytest.mark.parametrize(
    ("verb", "reply", "state"),
    [
        ("RCPT", "550 nobody here", "failed"),
        ("RCPT", "450 try later", "pending"),
        ("MAIL", "552 too much", "failed"),
        ("DATA", "451 try later", "pending"),
        ("DATA", "554 no", "failed"),
        ("EHLO", "421 busy", "pending"),
    ],
)
def test_only_temporary_refusals_of_a_mail_server_are_retried(
    tenant: Tenant, mails: MailReceiver, verb: str, reply: str, state: str
) -> None:
    channel_of(tenant, "email", "ops@example.com")
    make_alert(tenant)
    mails.refusals = {verb: reply, **({"HELO": reply} if verb == "EHLO" else {})}

    deliver_waiting("email")

    assert states(tenant) == [state]
    assert reply[:3] in the_delivery(tenant).last_error
    assert mails.mails == []


def test_a_mail_that_was_not_confirmed_is_not_sent_again(tenant: Tenant, mails: MailReceiver) -> None:
    channel_of(tenant, "email", "ops@example.com")
    make_alert(tenant)
    mails.breaks_after_text = True

    deliver_waiting("email")
    make_due(tenant)
    deliver_waiting("email")

    assert (states(tenant), len(mails.mails)) == (["unknown"], 1)


def test_an_accepted_mail_counts_whatever_the_server_answers_to_quit(
    tenant: Tenant, mails: MailReceiver
) -> None:
    channel_of(tenant, "email", "ops@example.com")
    make_alert(tenant)
    mails.refusals = {"QUIT": "221 " + "bye " * 3000}  # longer than a line may be

    deliver_waiting("email")

    assert (states(tenant), len(mails.mails)) == (["sent"], 1)


def test_a_mail_to_an_unreachable_server_is_retried(
    tenant: Tenant, mails: MailReceiver, settings: Any
) -> None:
    settings.EMAIL_PORT = 1
    channel_of(tenant, "email", "ops@example.com")
    make_alert(tenant)

    deliver_waiting("email")

    assert states(tenant) == ["pending"]


def test_without_a_mail_server_mail_fails_and_the_error_names_the_setting(tenant: Tenant) -> None:
    channel_of(tenant, "email", "ops@example.com")
    make_alert(tenant)

    deliver_waiting("email")

    assert states(tenant) == ["failed"]
    assert "EMAIL_URL" in the_delivery(tenant).last_error
