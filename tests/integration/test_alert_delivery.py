"""Alerts on their way out, to real receivers: repeated while that is safe, never when it is not, whatever dies when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import environ
import pytest
from django.db import connections, transaction
from django.db.models.functions import Now
from django.urls import reverse

from activities import tasks
from activities.alerts import delivery, raise_alert, slack, targets
from activities.alerts.delivery import deliver_waiting
from activities.alerts.raising import try_channel
from activities.models import AlertDelivery, NotificationChannel
from activities.models.alert import DeliveryState
from agents import outbound, webhook_signing
from tenants.context import OWNER, SYSTEM, tenant_scope
from tenants.models import Tenant
from tests.engine import at_once, elsewhere
from tests.receivers import HttpReceiver, MailReceiver, Posted, http_receiver, mail_receiver


class Died(BaseException):
    """Ends a deliverer in the middle of its work: nothing of ours catches it."""


@pytest.fixture(autouse=True)
def closed_world(settings: Any) -> Iterator[None]:
    """No channel of the platform, and nothing may be called, unless the test says so."""
    settings.SLACK_WEBHOOK_URL = settings.ALERT_EMAIL = settings.EMAIL_URL = ""
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    yield
    outbound.close_connections()


@pytest.fixture
def receiver(settings: Any) -> Iterator[HttpReceiver]:
    with http_receiver() as running:
        settings.ORCHESTRATOR_EGRESS_ALLOW += (running.place,)
        yield running


@pytest.fixture
def mails(settings: Any) -> Iterator[MailReceiver]:
    with mail_receiver() as running:
        settings.EMAIL_URL = f"smtp://127.0.0.1:{running.port}"
        for name, value in environ.Env.email_url_config(settings.EMAIL_URL).items():
            setattr(settings, name, value)
        yield running


def channel_of(tenant: Tenant, kind: str, address: str, name: str = "") -> NotificationChannel:
    channel = NotificationChannel(tenant=tenant, kind=kind, name=name or kind)
    targets.put(channel, address)
    with tenant_scope(tenant.pk):
        channel.save(force_insert=True)
    return channel


def raised(tenant: Tenant, title: str = "It failed", **fields: Any) -> UUID:
    with tenant_scope(tenant.pk):
        alert_id = raise_alert(tenant.pk, "dead_letter", title, **fields)
    assert alert_id is not None
    return alert_id


def deliveries(tenant: Tenant) -> list[AlertDelivery]:
    with tenant_scope(tenant.pk):
        return list(AlertDelivery.objects.order_by("pk"))


def the_delivery(tenant: Tenant) -> AlertDelivery:
    (found,) = deliveries(tenant)
    return found


def states(tenant: Tenant) -> list[str]:
    return [found.state for found in deliveries(tenant)]


def make_due(tenant: Tenant) -> None:
    """Let every wait be over, also that for a deliverer that died."""
    with tenant_scope(tenant.pk):
        AlertDelivery.objects.update(next_attempt_at=Now(), claimed_at=Now() - timedelta(minutes=5))


def wait_of(found: AlertDelivery) -> float:
    with tenant_scope(found.tenant_id):
        now = AlertDelivery.objects.annotate(now=Now()).values_list("now", flat=True).get(pk=found.pk)
    return float((found.next_attempt_at - now).total_seconds())


# --- What is sent ---------------------------------------------------------------------------------------------------------------


def test_slack_gets_the_alert_and_where_it_comes_from(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant, "It failed", body="Three times.", severity="critical")

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
    raised(tenant, text, body=text)

    deliver_waiting("slack")

    (posted,) = receiver.posted
    sent = posted.json["text"]
    assert not any(mark in sent for mark in ("<", ">", "://", "](", "@c", "@h", "@a", "@U", "#g"))
    assert "&lt;" not in sent or "<" in text or "&amp;lt;" in sent
    assert (posted.json["mrkdwn"], posted.json["parse"], posted.json["link_names"]) == (False, "none", False)


def test_text_in_slack_stays_readable() -> None:
    assert slack.inert("a < b & c > d, mail me") == "a &lt; b &amp; c &gt; d, mail me"
    assert slack.inert("see https://x.example").replace("\u200b", "") == "see https://x.example"


def test_the_platforms_slack_gets_a_link_that_only_shows(
    tenant: Tenant, receiver: HttpReceiver, settings: Any
) -> None:
    settings.SLACK_WEBHOOK_URL, settings.ORCHESTRATOR_PUBLIC_URL = (
        receiver.url,
        "https://orchestrator.example.com/",
    )
    alert_id = raised(tenant)

    deliver_waiting("slack")

    text = receiver.posted[0].json["text"]
    page = reverse("admin:activities_alert_change", args=[alert_id])
    assert text.endswith(f"\n<https://orchestrator.example.com{page}>")


def test_mail_is_plain_text_with_an_id_of_its_own(tenant: Tenant, mails: MailReceiver, settings: Any) -> None:
    settings.ORCHESTRATOR_PUBLIC_URL = "https://orchestrator.example.com"
    channel_of(tenant, "email", "ops@example.com, lead@example.com")
    raised(tenant, "It failed\r\nBcc: everybody@example.com", body="<b>Three</b> times.")

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


def test_a_channel_with_an_odd_name_can_be_tried(tenant: Tenant, mails: MailReceiver) -> None:
    channel = channel_of(tenant, "email", "ops@example.com", name="Ops\nBcc: everybody@example.com")
    with tenant_scope(tenant.pk):
        try_channel(channel, actor="user:ann")

    deliver_waiting("email")

    (mail,) = mails.mails
    assert mail["Subject"] == "[info] A test of the channel Ops Bcc: everybody@example.com"
    assert mails.recipients == [["ops@example.com"]]


def test_the_platforms_mail_goes_to_every_address(tenant: Tenant, mails: MailReceiver, settings: Any) -> None:
    settings.ALERT_EMAIL = "ops@example.com,night@example.com"
    raised(tenant)

    deliver_waiting("email")

    assert mails.recipients == [["ops@example.com", "night@example.com"]]


def test_a_webhook_is_signed_and_says_what_programs_need(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel = channel_of(tenant, "webhook", receiver.url)
    alert_id = raised(tenant, facts={"attempts": 3})

    deliver_waiting("webhook")

    (posted,) = receiver.posted
    assert posted.json["type"] == "alert.raised"
    assert posted.json["data"]["id"] == str(alert_id)
    assert posted.json["data"]["facts"] == {"attempts": 3}
    assert posted.json["data"]["tenant"] == "acme"
    assert posted.headers["webhook-id"] == str(the_delivery(tenant).pk)
    assert webhook_signing.verify(
        headers=posted.headers, body=posted.body, secrets=targets.opened(channel).secrets
    )


def test_a_renewed_secret_signs_beside_the_one_before(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel = channel_of(tenant, "webhook", receiver.url)
    (before,) = targets.opened(channel).secrets
    new = targets.renew_secret(channel)
    targets.renew_secret(channel)
    newest = targets.opened(channel).secrets[0]
    with tenant_scope(tenant.pk):
        channel.save()
    raised(tenant)

    deliver_waiting("webhook")

    (posted,) = receiver.posted
    good = [
        secret
        for secret in (before, new, newest)
        if webhook_signing.verify(headers=posted.headers, body=posted.body, secrets=[secret])
    ]
    assert good == [new, newest]


# --- What goes wrong ------------------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr("activities.alerts.posting.SECONDS", 0.5)
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
    payload = slack.payload

    def broken(message: Any) -> Any:
        return {"text": {1, 2}} if message.title == "breaks" else payload(message)

    monkeypatch.setattr(slack, "payload", broken)

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


# --- Twice, at once, and dying half-way -----------------------------------------------------------------------------------------


def test_two_deliverers_at_once_send_each_alert_once(tenant: Tenant, receiver: HttpReceiver) -> None:
    for number in range(10):
        channel_of(tenant, "slack", f"{receiver.url}/{number}", name=f"slack {number}")
    raised(tenant)

    tried = at_once(*[lambda: deliver_waiting("slack")] * 4)

    assert sum(tried) == 10
    assert sorted(posted.path for posted in receiver.posted) == [f"/hook/{number}" for number in range(10)]
    assert set(states(tenant)) == {"sent"}


def test_a_slow_receiver_holds_one_deliverer_and_not_its_neighbours(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    slow = channel_of(tenant, "slack", f"{receiver.url}/slow", name="slow")
    for _ in range(3):
        raised(tenant)
    channel_of(tenant, "slack", f"{receiver.url}/quick", name="quick")
    raised(tenant)
    with tenant_scope(tenant.pk):
        first = AlertDelivery.objects.filter(channel_id=slow.pk).order_by("pk").first()
        assert first is not None
    claim = delivery._claimed("slack")
    assert claim.id == first.pk

    deliver_waiting("slack")

    assert [posted.path for posted in receiver.posted] == ["/hook/quick"]


def test_alerts_of_one_channel_arrive_in_their_order(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    for number in range(5):
        raised(tenant, f"alert {number}")

    deliver_waiting("slack")

    assert [posted.json["text"].splitlines()[0] for posted in receiver.posted] == [
        f"[warning] alert {number}" for number in range(5)
    ]


def test_tenants_take_turns(tenant: Tenant, other_tenant: Tenant, receiver: HttpReceiver) -> None:
    for owner in (tenant, other_tenant):
        channel_of(owner, "slack", f"{receiver.url}/{owner.slug}")
    for _ in range(5):
        raised(tenant)
    for _ in range(2):
        raised(other_tenant)

    deliver_waiting("slack")

    order = [posted.path.rpartition("/")[2] for posted in receiver.posted]
    assert order == ["acme", "globex", "acme", "globex", "acme", "acme", "acme"]


def test_one_message_sends_so_many_and_leaves_the_rest(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    for _ in range(5):
        raised(tenant)

    assert (deliver_waiting("slack", limit=3), deliver_waiting("slack", limit=3)) == (3, 2)


def test_a_deliverer_gives_others_their_turn_in_time(
    tenant: Tenant, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SECONDS_AT_ONCE", 0.0)
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)

    assert deliver_waiting("slack") == 0


@pytest.mark.parametrize(("kind", "after", "times"), [("slack", "unknown", 1), ("webhook", "sent", 2)])
def test_a_deliverer_that_is_killed_between_sending_and_marking_repeats_only_what_is_recognised(
    tenant: Tenant,
    receiver: HttpReceiver,
    process_environment: dict[str, str],
    kind: str,
    after: str,
    times: int,
) -> None:
    """A real process, and a real SIGKILL, at the moment at which the receiver has the whole message."""
    channel_of(tenant, kind, receiver.url)
    raised(tenant)
    code = f"import django; django.setup(); from activities.alerts.delivery import deliver_waiting; deliver_waiting({kind!r})"
    environment = {**process_environment, "AGENT_EGRESS_ALLOW": receiver.place}
    victim = subprocess.Popen([sys.executable, "-c", code], env=environment)

    def kill(posted: Posted) -> None:
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()

    receiver.answer = kill
    assert victim.wait(60) == -signal.SIGKILL
    left = the_delivery(tenant)
    receiver.answers((200, {}, b""))
    deliver_waiting(kind)
    too_early = the_delivery(tenant)
    make_due(tenant)
    deliver_waiting(kind)

    assert (left.state, left.attempts) == ("sending", 1)
    assert 290 < wait_of(left) <= 300
    assert too_early.state == "sending"
    assert (states(tenant), len(receiver.posted)) == ([after], times)
    assert len({posted.headers.get("webhook-id") for posted in receiver.posted}) == 1


def test_mail_of_a_deliverer_that_died_is_unknown(
    tenant: Tenant, mails: MailReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel_of(tenant, "email", "ops@example.com")
    raised(tenant)

    def die(*arguments: Any, **changes: Any) -> None:
        raise Died

    with monkeypatch.context() as dying:
        dying.setattr(delivery, "_note", die)
        with pytest.raises(Died):
            deliver_waiting("email")
    make_due(tenant)
    deliver_waiting("email")

    assert (states(tenant), len(mails.mails)) == (["unknown"], 1)
    assert "ended before it could say" in the_delivery(tenant).last_error


def test_a_webhook_that_kills_every_deliverer_is_given_up(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "webhook", receiver.url)
    raised(tenant)
    with tenant_scope(tenant.pk):
        AlertDelivery.objects.update(state=DeliveryState.SENDING, attempts=8)
    make_due(tenant)

    deliver_waiting("webhook")

    assert (states(tenant), receiver.posted) == (["failed"], [])


@pytest.mark.parametrize("kind", ["slack", "webhook"])
@pytest.mark.parametrize(("status", "state"), [(200, "sent"), (500, "pending"), (404, "failed")])
def test_a_deliverer_that_was_taken_for_dead_still_knows_best(
    tenant: Tenant, receiver: HttpReceiver, kind: str, status: int, state: str
) -> None:
    channel_of(tenant, kind, receiver.url)
    raised(tenant)

    def taken_for_dead(posted: Posted) -> Any:
        elsewhere(lambda: (make_due(tenant), delivery._end_interrupted(kind)))
        return status, {}, b"at last"

    receiver.answer = taken_for_dead

    deliver_waiting(kind, limit=1)

    assert (states(tenant), len(receiver.posted)) == ([state], 1)


def test_a_deliverer_that_was_taken_for_dead_says_nothing_about_a_later_claim(
    tenant: Tenant, receiver: HttpReceiver
) -> None:
    channel_of(tenant, "webhook", receiver.url)
    raised(tenant)
    late = delivery._claimed("webhook")
    make_due(tenant)
    delivery._end_interrupted("webhook")
    make_due(tenant)
    assert delivery._claimed("webhook").attempt == 2

    delivery._note(late, state=DeliveryState.FAILED, last_error="late")

    assert states(tenant) == ["sending"]


def test_somebody_may_have_it_sent_again(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)
    receiver.answers((404, {}, b""), (200, {}, b""))
    deliver_waiting("slack")

    first = delivery.send_again(the_delivery(tenant))
    second = delivery.send_again(the_delivery(tenant))
    deliver_waiting("slack")

    assert (first, second, states(tenant)) == (True, False, ["sent"])
    assert not delivery.send_again(the_delivery(tenant))


def test_no_transaction_is_open_while_a_receiver_thinks(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "slack", receiver.url)
    raised(tenant)
    open_ones: list[int] = []

    def count() -> None:
        with connections[OWNER].cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            open_ones.append(cursor.fetchone()[0])

    def look(posted: Posted) -> Any:
        elsewhere(count)
        return 200, {}, b""

    receiver.answer = look

    deliver_waiting("slack")

    assert open_ones == [0]


def test_the_task_of_the_queue_sends(tenant: Tenant, receiver: HttpReceiver) -> None:
    channel_of(tenant, "webhook", receiver.url)
    raised(tenant)

    tasks.deliver_alerts(kind="webhook")
    tasks.deliver_alerts(kind="webhook")

    assert (states(tenant), len(receiver.posted)) == (["sent"], 1)


def test_what_waits_is_found_by_an_index(tenant: Tenant) -> None:
    """Among many that were sent. Asking costs every keeper one such look per second."""
    channel_of(tenant, "slack", "https://hooks.example.com/x")
    alert_id = raised(tenant)
    with transaction.atomic(using=OWNER), connections[OWNER].cursor() as cursor:
        cursor.execute(
            "INSERT INTO activities_alertdelivery (id, tenant_id, alert_id, channel_kind, channel_id, channel_name, state, attempts,"
            " last_error) SELECT gen_random_uuid(), %s, %s, 'slack', gen_random_uuid(), 'old', 'sent', 1, '' FROM generate_series(1, 5000)",
            [tenant.pk, alert_id],
        )
        cursor.execute("ANALYZE activities_alertdelivery")

    plan = delivery.waiting("slack").using(SYSTEM).explain()

    assert "deliveries_due" in plan
