"""Digests: one mail per channel and period in the tenant's time zone, about waiting, done and failed work and costs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import environ
import pytest
from django.core import mail
from django.db import connections
from django.db.models import F
from django.test import override_settings

from activities.models import Activity, Alert, AlertDelivery, DeadLetter, NotificationChannel
from activities.models.alert import DeliveryState
from activities.notifications import backends, digests
from activities.notifications.delivery import deliver_waiting
from activities.submission import NewActivity, submit
from tenants import money
from tenants.context import APP, tenant_scope
from tenants.models import Tenant, UsageEntry
from tests.engine import Engine, simultaneously
from tests.failed_work import submit_failing
from tests.receivers import mail_receiver

BERLIN = ZoneInfo("Europe/Berlin")
MONDAY = datetime(2026, 3, 2, 6, tzinfo=UTC)  # seven o'clock in Berlin
ADDRESS = "/api/v1/notification-channels/"


@pytest.fixture(autouse=True)
def outbox(settings: Any) -> None:
    settings.SLACK_WEBHOOK_URL = settings.ALERT_EMAIL = ""
    settings.EMAIL_URL = "memory"


@pytest.fixture
def acme(make_tenant: Callable[..., Tenant]) -> Tenant:
    return make_tenant("acme", name="Acme <b>Inc.</b>", timezone="Europe/Berlin")


def channel_of(
    tenant: Tenant, digest: str = "daily", name: str = "Mia", **fields: Any
) -> NotificationChannel:
    with tenant_scope(tenant.pk):
        channel = NotificationChannel(
            tenant=tenant, kind="email", name=name, digest=digest, kinds=["test"], **fields
        )
        backends.put_target(channel, "mia@acme.example")
        digests.plan_digest(channel, tenant.timezone, now=MONDAY - timedelta(minutes=1))
        channel.save(force_insert=True)
    return channel


def add_task(tenant: Tenant, name: str = "Read the brief", role: str = "editor") -> None:
    with tenant_scope(tenant.pk):
        submit([NewActivity(name=name, human_role=role)], actor="test")


def send_and_list() -> list[Any]:
    deliver_waiting("email")
    return list(mail.outbox)


def as_html(message: Any) -> str:
    ((html, kind),) = message.alternatives
    assert kind == "text/html"
    return str(html)


def due_at(channel: NotificationChannel) -> datetime | None:
    with tenant_scope(channel.tenant_id):
        due: datetime | None = NotificationChannel.objects.get(pk=channel.pk).digest_due_at
    return due


def test_a_digest_lists_waiting_done_and_failed_work_and_costs(engine: Engine, acme: Tenant) -> None:
    engine.serve(acme)
    channel_of(acme)
    add_task(acme)
    engine.submit(acme, "dev", count=3)
    engine.drain()
    submit_failing(engine, acme)
    money.create_budget(acme.pk, {"name": "Spring", "cap": 40, "unit": "dollars", "period": "total"})
    yesterday = MONDAY - timedelta(hours=20)
    with tenant_scope(acme.pk):
        Activity.objects.filter(finished_at__isnull=False).update(finished_at=yesterday)
        DeadLetter.objects.update(created_at=yesterday)
        entry = {
            "tenant": acme,
            "at": yesterday,
            "day": yesterday.date(),
            "agent_role": "dev",
            "activity_id": acme.pk,
            "run_id": acme.pk,
        }
        UsageEntry.objects.create(
            **entry, input_tokens=100, output_tokens=20, dollars="1.25", runs=0, unpriced=False
        )

    assert digests.send_due(now=MONDAY) == 1
    (message,) = send_and_list()

    text = message.body
    assert message.subject == "Acme <b>Inc.</b>: daily digest, 2026-03-01"
    assert message.to == ["mia@acme.example"]
    assert "WAITING FOR PEOPLE: " in text
    assert "- Read the brief (editor), since " in text
    assert "DONE: 3\n- dev: 3" in text
    assert "FAILED: 1, open in total: 1\n- qa: 1, 1 open: It broke." in text
    assert "SPENT: 1.25 USD, 0 runs, 120 tokens" in text
    assert "- Spring (total): 0 of 40 dollars, 0 %" in text
    assert "disable the digest of the notification channel Mia" in text
    assert "Open the inbox: http" in text
    for expected in ("Read the brief", "dev: 3", "It broke.", "1.25 USD", "Spring"):
        assert expected in as_html(message)


def test_names_from_outside_are_escaped_and_stay_on_one_line(acme: Tenant) -> None:
    channel_of(acme, name="<i>Mia</i>")
    add_task(acme, "<script>alert(1)</script>\r\nBcc: x@y.example")

    digests.send_due(now=MONDAY)
    (message,) = send_and_list()

    html = as_html(message)
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "Acme &lt;b&gt;Inc.&lt;/b&gt;" in html
    assert "&lt;i&gt;Mia&lt;/i&gt;" in html
    assert "- <script>alert(1)</script> Bcc: x@y.example (editor)" in message.body
    assert message.message()["Bcc"] is None


def test_a_digest_is_sent_once_per_period_at_seven_in_the_tenants_time_zone(acme: Tenant) -> None:
    channel = channel_of(acme)
    add_task(acme)

    assert digests.send_due(now=MONDAY - timedelta(seconds=1)) == 0
    assert [digests.send_due(now=MONDAY + timedelta(minutes=minute)) for minute in range(3)] == [1, 0, 0]
    assert len(send_and_list()) == 1
    assert due_at(channel) == MONDAY + timedelta(days=1)


def test_concurrent_processes_compose_one_digest(acme: Tenant) -> None:
    channel_of(acme)
    add_task(acme)

    assert sorted(simultaneously(*[lambda: digests.send_due(now=MONDAY)] * 4)) == [0, 0, 0, 1]
    simultaneously(*[lambda: deliver_waiting("email")] * 4)

    with tenant_scope(acme.pk):
        assert Alert.objects.filter(kind="digest").count() == 1
        assert AlertDelivery.objects.get().state == DeliveryState.SENT
    assert len(mail.outbox) == 1


def test_a_digest_that_another_process_has_composed_since_it_was_listed_is_not_composed_again(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = channel_of(acme)
    add_task(acme)
    with tenant_scope(acme.pk):
        assert digests._compose(acme.pk, channel.pk, MONDAY, MONDAY)
        monkeypatch.setattr(digests, "figures_of", lambda *arguments, **options: pytest.fail("composed"))
        assert not digests._compose(acme.pk, channel.pk, MONDAY, MONDAY)


def test_a_channel_whose_hour_is_moved_after_its_digest_gets_the_next_one_tomorrow(acme: Tenant) -> None:
    channel = channel_of(acme)
    add_task(acme)
    assert digests.send_due(now=MONDAY) == 1
    with tenant_scope(acme.pk):
        NotificationChannel.objects.update(digest_hour=8, digest_due_at=MONDAY + timedelta(hours=1))

    assert digests.send_due(now=MONDAY + timedelta(hours=1)) == 0
    assert due_at(channel) == MONDAY + timedelta(days=1, hours=1)


@pytest.mark.parametrize("change", [{"enabled": False}, {"kind": "webhook"}], ids=["disabled", "no email"])
def test_only_enabled_channels_for_email_get_digests(acme: Tenant, change: dict[str, Any]) -> None:
    channel_of(acme)
    add_task(acme)
    with tenant_scope(acme.pk):
        NotificationChannel.objects.update(**change)

    assert digests.send_due(now=MONDAY) == 0


def test_a_process_that_dies_while_composing_changes_nothing(
    acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def die(*arguments: Any, **options: Any) -> Any:
        raise Died

    channel = channel_of(acme)
    add_task(acme)
    with monkeypatch.context() as patched:
        patched.setattr(digests, "notify_channel", die)
        with pytest.raises(Died):
            digests.send_due(now=MONDAY)

    assert due_at(channel) == MONDAY
    assert digests.send_due(now=MONDAY) == 1
    assert len(send_and_list()) == 1


def test_a_digest_composed_by_an_ended_process_is_sent_once(acme: Tenant, settings: Any) -> None:
    channel_of(acme)
    add_task(acme)
    digests.send_due(now=MONDAY)
    connections[APP].close()  # as if the process ended after composing

    with mail_receiver() as receiver:
        settings.EMAIL_URL = f"smtp://127.0.0.1:{receiver.port}"
        with override_settings(**environ.Env.email_url_config(settings.EMAIL_URL)):
            assert digests.send_due(now=MONDAY) == 0
            deliver_waiting("email")
            deliver_waiting("email")

    (message,) = receiver.mails
    assert message.get_content_type() == "multipart/alternative"
    assert [part.get_content_type() for part in message.get_payload()] == ["text/plain", "text/html"]  # type: ignore[union-attr]


def test_a_digest_whose_sender_died_has_an_unknown_outcome_and_is_not_repeated(acme: Tenant) -> None:
    channel_of(acme)
    add_task(acme)
    digests.send_due(now=MONDAY)
    past = datetime.now(UTC) - timedelta(minutes=10)
    with tenant_scope(acme.pk):
        AlertDelivery.objects.update(
            state="sending", attempts=F("attempts") + 1, claimed_at=past, next_attempt_at=past
        )

    assert send_and_list() == []
    with tenant_scope(acme.pk):
        assert AlertDelivery.objects.get().state == DeliveryState.UNKNOWN


def test_an_empty_digest_is_not_sent(acme: Tenant) -> None:
    channel = channel_of(acme)

    assert digests.send_due(now=MONDAY) == 0
    assert due_at(channel) == MONDAY + timedelta(days=1)


def test_missed_digests_are_replaced_by_one(acme: Tenant) -> None:
    channel_of(acme)
    add_task(acme)

    later = MONDAY + timedelta(days=4, hours=5)
    assert [digests.send_due(now=later), digests.send_due(now=later)] == [1, 0]
    (message,) = send_and_list()
    assert message.subject.endswith("2026-03-05")


def test_a_digest_can_be_limited_to_tasks_of_some_human_roles(acme: Tenant) -> None:
    channel_of(acme, digest_roles=["legal"])
    add_task(acme, "For the editor")
    add_task(acme, "For the lawyers", "legal")

    digests.send_due(now=MONDAY)
    (message,) = send_and_list()

    assert "For the lawyers" in message.body
    assert "For the editor" not in message.body


def test_only_active_tenants_with_digests_get_one_about_their_own_work(
    acme: Tenant, make_tenant: Callable[..., Tenant]
) -> None:
    globex = make_tenant("globex", timezone="Europe/Berlin")
    channel_of(acme)
    channel_of(globex, digest="off")
    add_task(globex, "Secret of Globex")
    add_task(acme)
    inactive = make_tenant("gone", timezone="Europe/Berlin", is_active=False)
    channel_of(inactive)
    add_task(inactive)

    assert digests.send_due(now=MONDAY) == 1
    (message,) = send_and_list()
    assert "Globex" not in message.body + as_html(message)


def test_an_admin_can_configure_and_disable_digests(api: Callable[..., Any], acme: Tenant) -> None:
    client = api(tenant=acme)
    body = {
        "kind": "email",
        "name": "Mia",
        "target": "mia@acme.example",
        "digest": "weekly",
        "digest_roles": ["editor"],
    }

    created = client.post(ADDRESS, body)
    assert created.status_code == 201, created.content
    assert (created.json()["digest"], created.json()["digest_roles"]) == ("weekly", ["editor"])
    with tenant_scope(acme.pk):
        due = NotificationChannel.objects.get().digest_due_at
    assert due is not None
    assert (due.astimezone(BERLIN).hour, due.astimezone(BERLIN).weekday()) == (9, 0)

    assert (
        client.put(f"{ADDRESS}{created.json()['id']}/", {"name": "Mia", "digest": "off"}).status_code == 200
    )
    with tenant_scope(acme.pk):
        assert NotificationChannel.objects.get().digest_due_at is None
    refused = client.post(
        ADDRESS, {"kind": "slack", "name": "S", "target": "https://1.1.1.1/x", "digest": "daily"}
    )
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, "digest")


@pytest.mark.parametrize(
    ("digest", "now", "expected"),
    [
        ("daily", "2026-03-02T05:59:59Z", "2026-03-02T06:00:00Z"),
        ("daily", "2026-03-02T06:00:00Z", "2026-03-03T06:00:00Z"),
        ("daily", "2026-03-28T12:00:00Z", "2026-03-29T05:00:00Z"),  # summer time starts that night
        ("weekly", "2026-03-02T08:00:00Z", "2026-03-09T08:00:00Z"),
        ("weekly", "2026-10-24T12:00:00Z", "2026-10-26T08:00:00Z"),  # and ends in this one
    ],
)
def test_default_times_of_digests_follow_daylight_saving_time(digest: str, now: str, expected: str) -> None:
    times = digests.times_of(NotificationChannel(digest=digest))

    assert digests.next_due(times, BERLIN, after=datetime.fromisoformat(now)) == datetime.fromisoformat(
        expected
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"digest": "daily", "digest_hour": 0}, "2026-03-02T23:00:00Z"),
        ({"digest": "daily", "digest_hour": 22}, "2026-03-02T21:00:00Z"),
        ({"digest": "weekly", "digest_day": "thursday"}, "2026-03-05T10:00:00Z"),
        ({"digest": "weekly", "digest_day": "sunday", "digest_hour": 18}, "2026-03-08T17:00:00Z"),
        ({"digest": "daily"}, "2026-03-03T04:00:00Z"),
        ({"digest": "weekly"}, "2026-03-09T10:00:00Z"),
    ],
)
def test_a_channel_can_set_hour_and_day_with_defaults_of_the_platform(
    settings: Any, fields: dict[str, Any], expected: str
) -> None:
    settings.DIGEST_CRON_HOUR, settings.ORCHESTRATOR_WEEKLY_DIGEST_HOUR = 5, 11
    noon_of_monday = datetime(2026, 3, 2, 11, tzinfo=UTC)

    due = digests.next_due(digests.times_of(NotificationChannel(**fields)), BERLIN, after=noon_of_monday)

    assert due == datetime.fromisoformat(expected)


def test_a_digest_is_sent_at_the_configured_hour_and_day(api: Callable[..., Any], acme: Tenant) -> None:
    body = {
        "kind": "email",
        "name": "Mia",
        "target": "mia@acme.example",
        "digest": "weekly",
        "digest_hour": 18,
        "digest_day": "friday",
    }

    created = api(tenant=acme).post(ADDRESS, body)

    assert (created.status_code, created.json()["digest_hour"], created.json()["digest_day"]) == (
        201,
        18,
        "friday",
    )
    add_task(acme)
    with tenant_scope(acme.pk):
        due = NotificationChannel.objects.get().digest_due_at
    assert due is not None
    assert (due.astimezone(BERLIN).hour, due.astimezone(BERLIN).weekday()) == (18, 4)
    assert [digests.send_due(now=due - timedelta(seconds=1)), digests.send_due(now=due)] == [0, 1]
    assert due_at(NotificationChannel(pk=created.json()["id"], tenant=acme)) == digests.next_due(
        digests.Times(18, 4), BERLIN, after=due
    )
    for wrong in ({"digest_hour": 24}, {"digest_hour": -1}, {"digest_day": "doomsday"}):
        refused = api(tenant=acme).post(ADDRESS, {**body, "name": "Other", **wrong})
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (400, next(iter(wrong)))


def test_a_period_consists_of_whole_days_in_the_time_zone() -> None:
    day = digests.period_before("daily", BERLIN, datetime(2026, 3, 30, 5, tzinfo=UTC))
    week = digests.period_before("weekly", BERLIN, datetime(2026, 3, 30, 5, tzinfo=UTC))

    assert (day.begins, day.ends) == (
        datetime(2026, 3, 28, 23, tzinfo=UTC),
        datetime(2026, 3, 29, 22, tzinfo=UTC),
    )
    assert week.in_words == "2026-03-23 to 2026-03-29"
    assert digests.zone_of("Nowhere/Land").key == "UTC"
