"""A channel expires when any process notices it, raises one alert, and can be reactivated after a new login."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db.models.functions import Now

from activities.models import Alert
from tenants import channels, sweeps
from tenants.channels import STANDING, NotFound
from tenants.context import tenant_scope
from tenants.exceptions import TenantError
from tenants.identifiers import uuid7
from tenants.models import Channel, Tenant
from tenants.signals import channel_expired, channel_expiring
from tests.engine import in_another_thread, simultaneously
from tests.upkeep import run_due_jobs

MakeChannel = Callable[..., Channel]


@pytest.fixture
def make_channel(tenant: Tenant) -> MakeChannel:
    def create(owner: Tenant | None = None, **fields: Any) -> Channel:
        of = owner or tenant
        with tenant_scope(of.pk):
            return Channel.objects.create(
                tenant=of, kind="google-ads", name=fields.pop("name", f"Ads {uuid7()}"), **fields
            )

    return create


def reload(channel: Channel) -> Channel:
    with tenant_scope(channel.tenant_id):
        return Channel.objects.annotate(standing=STANDING).get(pk=channel.pk)


def alerts(tenant: Tenant) -> list[Alert]:
    with tenant_scope(tenant.pk):
        return list(Alert.objects.order_by("pk"))


def ago(**time: float) -> datetime:
    return datetime.now(UTC) - timedelta(**time)


def ahead(**time: float) -> datetime:
    return datetime.now(UTC) + timedelta(**time)


def test_an_alert_about_an_expired_channel_is_part_of_the_same_transaction(
    tenant: Tenant, make_channel: MakeChannel
) -> None:
    channel = make_channel(name="Ads")

    assert channels.expire(tenant.pk, channel.pk)

    channel_now = reload(channel)
    assert (channel_now.status, channel_now.version) == ("expired", 2)
    assert channel_now.status_since > channel.created_at
    (alert,) = alerts(tenant)
    assert alert.kind == "channel_expired"
    assert alert.title == "The channel Ads (google-ads) has expired"
    assert alert.facts["channel"] == str(channel.pk)


def test_people_are_warned_once_a_day_before_an_expiry_and_again_for_another_time(
    tenant: Tenant, other_tenant: Tenant, make_channel: MakeChannel
) -> None:
    soon = make_channel(name="Drive", expires_at=ahead(hours=23))
    make_channel(expires_at=ahead(hours=25))
    make_channel(expires_at=ago(hours=1))
    make_channel(expires_at=ahead(hours=1), status="disabled")

    assert [channels.announce_expiring() for _ in range(3)] == [1, 0, 0]

    (alert,) = alerts(tenant)
    assert (alert.kind, alert.title) == ("channel_expiring", "The channel Drive (google-ads) expires soon")
    assert (alert.facts["channel"], alerts(other_tenant)) == (str(soon.pk), [])
    channels.reactivate(tenant.pk, soon.pk, expires_at=ahead(hours=48))
    assert channels.announce_expiring() == 0
    channels.reactivate(tenant.pk, soon.pk, expires_at=ahead(hours=20))
    assert sorted(simultaneously(*[channels.announce_expiring] * 4)) == [0, 0, 0, 1]
    assert reload(soon).standing == "active"


def test_expiring_a_channel_again_raises_no_alert(tenant: Tenant, make_channel: MakeChannel) -> None:
    channel = make_channel()

    outcomes = [channels.expire(tenant.pk, channel.pk) for _ in range(3)]

    assert outcomes == [True, False, False]
    assert (reload(channel).version, len(alerts(tenant))) == (2, 1)


def test_one_of_twenty_simultaneous_reports_expires_a_channel(
    tenant: Tenant, make_channel: MakeChannel
) -> None:
    channel = make_channel(expires_at=ago(minutes=1))
    noticing: list[Callable[[], Any]] = [lambda: channels.expire(tenant.pk, channel.pk), channels.expire_due]

    outcomes = simultaneously(*noticing * 10)

    assert [bool(outcome) for outcome in outcomes].count(True) == 1
    assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert (reload(channel).version, len(alerts(tenant))) == (2, 1)


def test_each_expiry_of_a_channel_raises_an_alert(tenant: Tenant, make_channel: MakeChannel) -> None:
    channel = make_channel()
    channels.expire(tenant.pk, channel.pk)
    channels.reactivate(tenant.pk, channel.pk)
    channels.expire(tenant.pk, channel.pk)

    assert len(alerts(tenant)) == 2


@pytest.mark.parametrize("whose", ["another tenant's", "nobody's"])
def test_a_channel_of_another_tenant_is_not_changed(
    tenant: Tenant, other_tenant: Tenant, make_channel: MakeChannel, whose: str
) -> None:
    channel_id: UUID = make_channel(other_tenant).pk if whose == "another tenant's" else uuid7()

    assert not channels.expire(tenant.pk, channel_id)
    with pytest.raises(NotFound):
        channels.reactivate(tenant.pk, channel_id)
    with pytest.raises(NotFound):
        channels.disable(tenant.pk, channel_id)

    assert (alerts(tenant), alerts(other_tenant)) == ([], [])


def test_a_disabled_channel_does_not_expire(tenant: Tenant, make_channel: MakeChannel) -> None:
    channel = make_channel(expires_at=ago(minutes=1))
    channels.disable(tenant.pk, channel.pk)

    assert not channels.expire(tenant.pk, channel.pk)
    assert channels.expire_due() == 0
    assert reload(channel).standing == "disabled"


def test_a_report_from_before_a_reactivation_does_not_expire_the_channel(
    tenant: Tenant, make_channel: MakeChannel
) -> None:
    channel = make_channel()
    channels.expire(tenant.pk, channel.pk)
    begun_before = datetime.now(UTC)
    channels.reactivate(tenant.pk, channel.pk)

    late = channels.expire(tenant.pk, channel.pk, seen_at=begun_before)
    fresh = channels.expire(tenant.pk, channel.pk, seen_at=datetime.now(UTC))

    assert (late, fresh) == (False, True)


def test_a_failing_receiver_rolls_the_expiry_back(tenant: Tenant, make_channel: MakeChannel) -> None:
    channel = make_channel()

    def fail(**options: Any) -> None:
        raise ZeroDivisionError

    channel_expired.connect(fail)
    try:
        with pytest.raises(ZeroDivisionError):
            channels.expire(tenant.pk, channel.pk)
    finally:
        channel_expired.disconnect(fail)

    assert (reload(channel).status, alerts(tenant)) == ("active", [])


def test_a_channel_past_its_time_counts_as_expired_before_the_sweep(make_channel: MakeChannel) -> None:
    past, ahead_of_us, unknown = (
        make_channel(expires_at=ago(seconds=1)),
        make_channel(expires_at=ahead(hours=1)),
        make_channel(),
    )

    assert [reload(channel).standing for channel in (past, ahead_of_us, unknown)] == [
        "expired",
        "active",
        "active",
    ]
    assert reload(past).status == "active"


def test_the_sweep_marks_due_channels_of_all_tenants_once(
    tenant: Tenant, other_tenant: Tenant, make_channel: MakeChannel
) -> None:
    due = [make_channel(expires_at=ago(days=1)), make_channel(other_tenant, expires_at=ago(minutes=1))]
    later = make_channel(expires_at=ahead(hours=1))

    assert (channels.expire_due(), channels.expire_due()) == (2, 0)

    assert [reload(channel).status for channel in (*due, later)] == ["expired", "expired", "active"]
    assert (len(alerts(tenant)), len(alerts(other_tenant))) == (1, 1)


def test_a_channel_that_is_reactivated_during_the_sweep_stays_active(
    tenant: Tenant, make_channel: MakeChannel
) -> None:
    first, second = make_channel(expires_at=ago(days=2)), make_channel(expires_at=ago(days=1))

    def reactivate_the_second(*, channel: Channel, **options: Any) -> None:
        if channel.pk == first.pk:
            in_another_thread(lambda: channels.reactivate(tenant.pk, second.pk, expires_at=ahead(days=30)))

    channel_expired.connect(reactivate_the_second)
    try:
        assert channels.expire_due() == 1
    finally:
        channel_expired.disconnect(reactivate_the_second)

    assert reload(second).standing == "active"


def test_a_channel_that_cannot_be_marked_does_not_stop_the_others(
    tenant: Tenant, make_channel: MakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 1)
    bad, good = make_channel(expires_at=ago(days=2)), make_channel(expires_at=ago(days=1))

    def fail_for_one(*, channel: Channel, **options: Any) -> None:
        if channel.pk == bad.pk:
            raise ZeroDivisionError

    channel_expired.connect(fail_for_one)
    try:
        assert channels.expire_due() == 1
    finally:
        channel_expired.disconnect(fail_for_one)

    assert (reload(bad).status, reload(good).status) == ("active", "expired")


def test_a_channel_that_cannot_be_announced_does_not_stop_the_others(make_channel: MakeChannel) -> None:
    broken, fine = make_channel(expires_at=ahead(hours=1)), make_channel(expires_at=ahead(hours=2))
    announced = []

    def fail_for_one(*, channel: Channel, **options: Any) -> bool:
        if channel.pk == broken.pk:
            raise ZeroDivisionError
        announced.append(channel.pk)
        return True

    channel_expiring.connect(fail_for_one)
    try:
        assert channels.announce_expiring() == 1
    finally:
        channel_expiring.disconnect(fail_for_one)

    assert announced == [fine.pk]


def test_channels_that_were_announced_already_keep_no_others_from_being_announced(
    tenant: Tenant, make_channel: MakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "PAGE", 2)
    at = ahead(hours=2)
    for _ in range(5):
        make_channel(expires_at=at)

    assert [channels.announce_expiring() for _ in range(2)] == [5, 0]


def test_the_leader_runs_the_sweep(tenant: Tenant, make_channel: MakeChannel) -> None:
    channel = make_channel(expires_at=ago(minutes=1))

    run_due_jobs()

    assert reload(channel).status == "expired"


def test_a_reactivated_channel_drops_an_expiry_in_the_past(tenant: Tenant, make_channel: MakeChannel) -> None:
    channel = make_channel(expires_at=ago(minutes=1))
    channels.expire_due()

    reactivated = channels.reactivate(tenant.pk, channel.pk)

    assert (reactivated.standing, reactivated.expires_at) == ("active", None)
    assert channels.expire_due() == 0


def test_a_reactivated_channel_keeps_an_expiry_in_the_future(
    tenant: Tenant, make_channel: MakeChannel
) -> None:
    until = ahead(days=30)
    channel = make_channel(expires_at=until)
    channels.expire(tenant.pk, channel.pk)

    assert channels.reactivate(tenant.pk, channel.pk).expires_at == until


def test_a_channel_can_be_reactivated_until_a_new_time(tenant: Tenant, make_channel: MakeChannel) -> None:
    until = ahead(days=30)
    channel = make_channel(expires_at=ago(minutes=1))

    reactivated = channels.reactivate(tenant.pk, channel.pk, expires_at=until)

    assert (reactivated.standing, reactivated.expires_at) == ("active", until)
    with pytest.raises(TenantError, match="is in the past"):
        channels.reactivate(tenant.pk, channel.pk, expires_at=ago(seconds=1))


def test_reactivating_and_disabling_change_nothing_the_second_time(
    tenant: Tenant, make_channel: MakeChannel
) -> None:
    channel = make_channel()
    unchanged = channels.reactivate(tenant.pk, channel.pk)
    off = [channels.disable(tenant.pk, channel.pk).version for _ in range(2)]
    on = [channels.reactivate(tenant.pk, channel.pk).version for _ in range(2)]

    assert (unchanged.version, off, on) == (1, [2, 2], [3, 3])
    with tenant_scope(tenant.pk):
        assert Channel.objects.filter(status_since__lte=Now()).exists()
