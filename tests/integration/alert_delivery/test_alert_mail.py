"""Mail servers that refuse, keep silent or are away."""

from __future__ import annotations

from typing import Any

import pytest

from activities.notifications.delivery import deliver_waiting
from tenants.models import Tenant
from tests.integration.alert_delivery.channels import channel_of, make_due, raised, states, the_delivery
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
def test_a_mail_server_that_refuses_is_asked_again_only_if_it_may_change_its_mind(
    tenant: Tenant, mails: MailReceiver, verb: str, reply: str, state: str
) -> None:
    channel_of(tenant, "email", "ops@example.com")
    raised(tenant)
    mails.refusals = {verb: reply, **({"HELO": reply} if verb == "EHLO" else {})}

    deliver_waiting("email")

    assert states(tenant) == [state]
    assert reply[:3] in the_delivery(tenant).last_error
    assert mails.mails == []


def test_a_mail_that_was_not_confirmed_is_not_sent_again(tenant: Tenant, mails: MailReceiver) -> None:
    channel_of(tenant, "email", "ops@example.com")
    raised(tenant)
    mails.breaks_after_text = True

    deliver_waiting("email")
    make_due(tenant)
    deliver_waiting("email")

    assert (states(tenant), len(mails.mails)) == (["unknown"], 1)


def test_a_mail_that_was_taken_counts_however_the_server_says_goodbye(
    tenant: Tenant, mails: MailReceiver
) -> None:
    channel_of(tenant, "email", "ops@example.com")
    raised(tenant)
    mails.refusals = {"QUIT": "221 " + "bye " * 3000}  # longer than a line may be

    deliver_waiting("email")

    assert (states(tenant), len(mails.mails)) == (["sent"], 1)


def test_a_mail_server_that_is_away_is_tried_again(
    tenant: Tenant, mails: MailReceiver, settings: Any
) -> None:
    settings.EMAIL_PORT = 1
    channel_of(tenant, "email", "ops@example.com")
    raised(tenant)

    deliver_waiting("email")

    assert states(tenant) == ["pending"]


def test_without_a_mail_server_mail_fails_saying_so(tenant: Tenant) -> None:
    channel_of(tenant, "email", "ops@example.com")
    raised(tenant)

    deliver_waiting("email")

    assert states(tenant) == ["failed"]
    assert "EMAIL_URL" in the_delivery(tenant).last_error
