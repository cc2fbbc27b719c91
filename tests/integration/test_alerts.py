"""An alert and its deliveries are created once, in the transaction of the change that they report."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, connections

from activities.alerts import raise_alert
from activities.models import Alert, AlertDelivery, NotificationChannel
from activities.models.alert import AlertKind
from activities.notifications import backends
from tenants.context import APP, tenant_scope
from tenants.identifiers import uuid7
from tenants.models import Tenant
from tests.engine import simultaneously


@pytest.fixture(autouse=True)
def no_platform(settings: Any) -> None:
    settings.SLACK_WEBHOOK_URL = settings.ALERT_EMAIL = ""


def channel_of(
    tenant: Tenant, kind: str = "email", to: str = "ops@example.com", **fields: Any
) -> NotificationChannel:
    channel = NotificationChannel(tenant=tenant, kind=kind, name=fields.pop("name", kind), **fields)
    backends.put_target(channel, to)
    with tenant_scope(tenant.pk):
        channel.save(force_insert=True)
    return channel


def raise_in(
    tenant: Tenant, kind: str = "dead_letter", title: str = "It failed", **fields: Any
) -> UUID | None:
    with tenant_scope(tenant.pk):
        return raise_alert(tenant.pk, kind, title, **fields)


def statements(action: Callable[[], Any]) -> int:
    """Count the statements of an action, including those of hand-written SQL."""
    count = 0

    def count_statement(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal count
        count += 1
        return execute(sql, params, many, context)

    with connections[APP].execute_wrapper(count_statement):
        action()
    return count


def deliveries(tenant: Tenant) -> list[tuple[str, UUID | None]]:
    with tenant_scope(tenant.pk):
        return sorted(AlertDelivery.objects.values_list("channel_kind", "channel_id"), key=str)


def alerts(tenant: Tenant) -> list[Alert]:
    with tenant_scope(tenant.pk):
        return list(Alert.objects.order_by("pk"))


def test_an_alert_stores_what_it_was_raised_with(tenant: Tenant) -> None:
    activity, at = uuid7(), datetime(2026, 5, 1, 9, 30, tzinfo=UTC)

    raise_in(
        tenant,
        title="It failed",
        body="Twice.\nAnd again.",
        severity="critical",
        activity_id=activity,
        facts={"at": at, "run": activity},
    )

    (alert,) = alerts(tenant)
    assert (alert.kind, alert.severity, alert.title, alert.body) == (
        "dead_letter",
        "critical",
        "It failed",
        "Twice.\nAnd again.",
    )
    assert alert.activity_id == activity
    assert alert.facts == {"at": "2026-05-01T09:30:00+00:00", "run": str(activity)}
    assert (alert.acknowledged_at, alert.acknowledged_by) == (None, "")


def test_an_alert_without_a_channel_is_one_statement(tenant: Tenant) -> None:
    with tenant_scope(tenant.pk):
        assert statements(lambda: raise_alert(tenant.pk, "dead_letter", "It failed")) == 1

    assert deliveries(tenant) == []


def test_an_alert_with_channels_is_two_statements(tenant: Tenant) -> None:
    for number in range(3):
        channel_of(tenant, name=f"mail {number}")

    with tenant_scope(tenant.pk):
        assert statements(lambda: raise_alert(tenant.pk, "dead_letter", "It failed")) == 2

    assert len(deliveries(tenant)) == 3


def test_a_channel_gets_the_kinds_of_alerts_that_it_selects(tenant: Tenant) -> None:
    every = channel_of(tenant, name="every")
    dead = channel_of(tenant, name="dead", kinds=["dead_letter", "wake_budget"])
    channel_of(tenant, name="plans", kinds=["plan_invalid"])
    channel_of(tenant, name="off", enabled=False)

    raise_in(tenant, "dead_letter")

    assert {channel_id for _, channel_id in deliveries(tenant)} == {every.pk, dead.pk}


def test_a_channel_of_another_tenant_gets_nothing(tenant: Tenant, other_tenant: Tenant) -> None:
    channel_of(other_tenant)

    raise_in(tenant)

    assert (deliveries(tenant), deliveries(other_tenant)) == ([], [])


def test_the_platforms_channels_get_alerts_of_every_tenant(
    tenant: Tenant, other_tenant: Tenant, settings: Any
) -> None:
    settings.SLACK_WEBHOOK_URL, settings.ALERT_EMAIL = "https://hooks.example.com/x", "ops@example.com"

    raise_in(tenant)
    raise_in(other_tenant)

    assert deliveries(tenant) == deliveries(other_tenant) == [("email", None), ("slack", None)]


def test_an_alert_with_a_known_key_is_not_created_again(tenant: Tenant, other_tenant: Tenant) -> None:
    channel_of(tenant)

    first = raise_in(tenant, dedup_key="dead-letter:1")
    second = raise_in(tenant, title="Another text", dedup_key="dead-letter:1")
    elsewhere = raise_in(other_tenant, dedup_key="dead-letter:1")

    assert first is not None
    assert second is None
    assert elsewhere is not None
    assert [alert.title for alert in alerts(tenant)] == ["It failed"]
    assert len(deliveries(tenant)) == 1


def test_alerts_without_a_key_never_merge(tenant: Tenant) -> None:
    assert raise_in(tenant) != raise_in(tenant)
    assert len(alerts(tenant)) == 2


def test_one_of_twenty_simultaneous_equal_alerts_is_created(tenant: Tenant) -> None:
    channel_of(tenant)

    outcomes = simultaneously(*[lambda: raise_in(tenant, dedup_key="same") for _ in range(20)])

    assert len([outcome for outcome in outcomes if isinstance(outcome, UUID)]) == 1
    assert outcomes.count(None) == 19
    assert (len(alerts(tenant)), len(deliveries(tenant))) == (1, 1)


def test_an_alert_is_rolled_back_with_the_change_that_it_reports(tenant: Tenant) -> None:
    channel_of(tenant)

    def fail_after_raising_the_alert() -> None:
        with tenant_scope(tenant.pk):
            raise_alert(tenant.pk, "dead_letter", "It failed", dedup_key="one")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_raising_the_alert()

    assert (alerts(tenant), deliveries(tenant)) == ([], [])
    assert raise_in(tenant, dedup_key="one") is not None


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Failed:\r\nBcc: all@example.com", "Failed: Bcc: all@example.com"),
        ("\x00\u202egnp.exe", "gnp.exe"),
        ("x" * 300, "x" * 199 + "…"),
        ("\n\t", "Dead Letter"),
    ],
)
def test_a_title_from_outside_becomes_one_printable_line(tenant: Tenant, title: str, expected: str) -> None:
    raise_in(tenant, title=title, body="a\x00b" * 10_000)

    assert alerts(tenant)[0].title == expected
    assert "\x00" not in alerts(tenant)[0].body
    assert len(alerts(tenant)[0].body) == 10_000


def test_an_unknown_kind_of_alert_is_an_error(tenant: Tenant) -> None:
    with pytest.raises(ValueError, match="not a valid AlertKind"):
        raise_in(tenant, "dead_leter")
    assert max(map(len, AlertKind)) <= Alert._meta.get_field("kind").max_length  # type: ignore[operator]


def test_a_channel_gets_an_alert_once(tenant: Tenant) -> None:
    channel = channel_of(tenant)
    alert_id = raise_in(tenant)

    with pytest.raises(IntegrityError, match="alert_once_per_channel"), tenant_scope(tenant.pk):
        AlertDelivery.objects.create(
            tenant=tenant,
            alert_id=alert_id,
            channel_kind="email",
            channel_id=channel.pk,
            channel_name="again",
        )


def test_the_platforms_channel_gets_an_alert_once(tenant: Tenant, settings: Any) -> None:
    settings.SLACK_WEBHOOK_URL = "https://hooks.example.com/x"
    alert_id = raise_in(tenant)

    with pytest.raises(IntegrityError, match="alert_once_per_channel"), tenant_scope(tenant.pk):
        AlertDelivery.objects.create(
            tenant=tenant, alert_id=alert_id, channel_kind="slack", channel_name="again"
        )
