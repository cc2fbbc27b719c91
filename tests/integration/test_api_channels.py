"""Channels over the API: admins change them, and every role sees their status."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.models import Alert
from tenants.context import tenant_scope
from tenants.models import Tenant
from tests.answers import problem, version_of

CHANNELS = "/api/v1/channels/"
ADS = {"kind": "google-ads", "name": "Ads", "details": {"account": "12-34"}}


def create_channel(client: Any, **fields: Any) -> dict[str, Any]:
    answer = client.post(CHANNELS, {**ADS, **fields}, format="json")
    assert answer.status_code == 201, answer.content
    return dict(answer.json())


def iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def test_a_channel_can_be_created_read_and_listed(api: Any, tenant: Tenant) -> None:
    admin, viewer = api(), api("viewer")

    answer = admin.post(CHANNELS, ADS, format="json")

    channel = answer.json()
    assert channel.keys() == {
        "id", "kind", "name", "status", "status_since", "expires_at", "details", "version", "created_at",
    }  # fmt: skip
    assert (channel["status"], channel["details"], channel["expires_at"]) == (
        "active",
        {"account": "12-34"},
        None,
    )
    assert answer["Location"] == f"{CHANNELS}{channel['id']}/"
    assert viewer.get(answer["Location"]).json() == channel
    assert version_of(viewer.get(answer["Location"])) == "1"
    assert viewer.get(CHANNELS).json()["results"] == [channel]


@pytest.mark.parametrize("role", ["viewer", "reviewer", "operator"])
def test_only_admins_change_channels(api: Any, role: str) -> None:
    address = f"{CHANNELS}{create_channel(api())['id']}/"
    client = api(role)

    problem(client.post(CHANNELS, ADS, format="json"), 403, "forbidden")
    problem(client.put(address, ADS, format="json"), 403, "forbidden")
    problem(client.delete(address), 403, "forbidden")
    for action in ("expire", "reactivate", "disable"):
        problem(client.post(f"{address}{action}/"), 403, "forbidden")


def test_every_error_is_reported(api: Any) -> None:
    body = {"name": " ", "kind": 5, "expires_at": "tomorrow", "details": [], "status": "active"}

    refusal = problem(api().post(CHANNELS, body, format="json"), 400, "validation_failed")

    assert {error["path"] for error in refusal["errors"]} == {
        "name",
        "kind",
        "expires_at",
        "details",
        "status",
    }


def test_a_name_is_unique_per_kind(api: Any, other_tenant: Tenant) -> None:
    admin = api()
    create_channel(admin)
    other = create_channel(admin, name="Other")

    problem(admin.post(CHANNELS, ADS, format="json"), 409, "already_exists")
    problem(admin.put(f"{CHANNELS}{other['id']}/", ADS, format="json"), 409, "already_exists")
    create_channel(admin, kind="meta-ads")
    create_channel(api(tenant=other_tenant))


def test_a_change_replaces_all_but_the_status(api: Any) -> None:
    admin = api()
    channel = create_channel(admin, expires_at=iso(datetime.now(UTC) + timedelta(days=1)))
    address = f"{CHANNELS}{channel['id']}/"
    admin.post(f"{address}disable/")

    changed = admin.put(
        address, {"kind": "google-ads", "name": "Renamed"}, format="json", headers={"If-Match": '"2"'}
    )

    assert changed.status_code == 200
    assert version_of(changed) == "3"
    body = changed.json()
    assert (body["name"], body["details"], body["expires_at"], body["status"]) == (
        "Renamed",
        {},
        None,
        "disabled",
    )
    problem(admin.put(address, ADS, format="json", headers={"If-Match": '"2"'}), 412, "precondition_failed")
    problem(admin.delete(address, headers={"If-Match": '"2"'}), 412, "precondition_failed")
    problem(admin.post(f"{address}reactivate/", headers={"If-Match": '"2"'}), 412, "precondition_failed")


def test_a_channel_can_be_deleted(api: Any) -> None:
    admin = api()
    address = f"{CHANNELS}{create_channel(admin)['id']}/"

    assert admin.delete(address).status_code == 204
    problem(admin.get(address), 404, "not_found")


def test_a_channel_that_expires_raises_an_alert_once(api: Any, tenant: Tenant) -> None:
    admin = api()
    address = f"{CHANNELS}{create_channel(admin)['id']}/"

    first, second = admin.post(f"{address}expire/").json(), admin.post(f"{address}expire/").json()

    assert (first["status"], first["version"]) == ("expired", 2)
    assert second == first
    with tenant_scope(tenant.pk):
        assert Alert.objects.filter(kind="channel_expired").count() == 1


def test_a_channel_can_be_reactivated_until_a_time(api: Any) -> None:
    admin, until = api(), iso(datetime.now(UTC) + timedelta(days=30))
    address = f"{CHANNELS}{create_channel(admin)['id']}/"
    admin.post(f"{address}expire/")

    body = admin.post(f"{address}reactivate/", {"expires_at": until}, format="json").json()

    assert (body["status"], body["expires_at"]) == ("active", until)
    past = {"expires_at": "2020-01-01T00:00:00Z"}
    problem(admin.post(f"{address}reactivate/", past, format="json"), 400, "expiry_in_the_past")


def test_a_channel_past_its_expiry_is_returned_and_filtered_as_expired(api: Any) -> None:
    admin = api()
    past = create_channel(admin, name="Past", expires_at="2020-01-01T00:00:00Z")
    active = create_channel(admin, name="Active")

    assert past["status"] == "expired"
    assert [channel["id"] for channel in admin.get(f"{CHANNELS}?status=expired").json()["results"]] == [
        past["id"]
    ]
    assert [channel["id"] for channel in admin.get(f"{CHANNELS}?status=active").json()["results"]] == [
        active["id"]
    ]
    assert admin.get(f"{CHANNELS}?kind=meta-ads&search=Past").json()["results"] == []
    problem(admin.get(f"{CHANNELS}?state=expired"), 400, "validation_failed")


def test_a_repeated_request_creates_no_second_channel(api: Any) -> None:
    admin = api()
    key = {"Idempotency-Key": "one"}

    first = admin.post(CHANNELS, ADS, format="json", headers=key)
    second = admin.post(CHANNELS, ADS, format="json", headers=key)

    assert second.json() == first.json()
    assert len(admin.get(CHANNELS).json()["results"]) == 1
